"""The album's tables."""

import album.models
import django.db.models.deletion
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Upload',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('email', models.EmailField(max_length=254, verbose_name='send a notice to')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('notice_sent_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Photo',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('title', models.CharField(max_length=100)),
                ('original', models.FileField(max_length=200, upload_to=album.models.original_path)),
                ('sha256', models.CharField(editable=False, max_length=64, unique=True, verbose_name='SHA-256 of the file')),
                ('thumbnail_job', models.CharField(blank=True, editable=False, max_length=200, verbose_name='job that makes the thumbnails')),
                ('width', models.PositiveIntegerField(blank=True, editable=False, null=True)),
                ('height', models.PositiveIntegerField(blank=True, editable=False, null=True)),
                ('colour', models.CharField(blank=True, editable=False, max_length=7, verbose_name='average colour')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('prepared_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('upload', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='photos', to='album.upload')),
            ],
            options={
                'ordering': ['-created_at', 'title'],
            },
        ),
        migrations.CreateModel(
            name='WebhookCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField(help_text='1 for the first call about this photograph')),
                ('status', models.PositiveSmallIntegerField(verbose_name='HTTP status answered')),
                ('received_at', models.DateTimeField(auto_now_add=True)),
                ('photo', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhook_calls', to='album.photo')),
            ],
            options={
                'ordering': ['photo', 'number'],
                'constraints': [models.UniqueConstraint(fields=('photo', 'number'), name='one_row_per_call')],
            },
        ),
    ]
