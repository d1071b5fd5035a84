"""The models as the project's migrations know them: permissions and content types, but no table.

Only the key is named. Django compares the fields of managed models alone, so the others may change freely.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("key", models.CharField("job", db_column="id", max_length=300, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "nobroker_django_job",
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "proxy": True,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
                "indexes": [],
                "constraints": [],
            },
            bases=("nobroker_django.job",),
        ),
    ]
