"""The outbox's table."""

from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='OutboxRow',
            fields=[
                ('key', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('queue', models.CharField(max_length=64)),
                ('job_id', models.CharField(max_length=200)),
                ('task', models.CharField(max_length=200)),
                ('jobs', models.IntegerField()),
                ('size_bytes', models.BigIntegerField()),
                ('called_at', models.FloatField()),
                ('known_until', models.FloatField()),
                ('problem', models.TextField(blank=True, default='')),
                ('content', models.BinaryField()),
            ],
            options={
                'verbose_name': 'outbox row',
                'verbose_name_plural': 'outbox rows',
                'db_table': 'nobroker_outbox',
                'default_permissions': ('view',),
            },
        ),
    ]
