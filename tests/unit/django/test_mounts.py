"""Which file system a path is on."""

import pytest

from nobroker_django.mounts import Mount, mount_of

MOUNTS = r"""
22 28 0:21 / /proc rw,nosuid shared:5 - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 28 0:40 / /srv/share rw shared:9 master:1 - nfs4 files:/export rw,vers=4.2
41 28 0:41 / /srv/with\040space\134x rw - cifs //nas/a\040b rw
42 40 8:2 / /srv/share/local rw - xfs /dev/sdb1 rw
43 28 0:43 / /mnt/twice rw - nfs files:/x rw
44 43 8:3 / /mnt/twice rw - ext4 /dev/sdc1 rw
45 28 0:45 / /home/me/remote rw - fuse.sshfs me@host: rw
46 28 0:46 / /home/me/drive rw - fuseblk /dev/sdd1 rw
a line of another shape
47 28 0:47 / /short
"""


@pytest.fixture
def mountinfo(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "type_", "network"),
    [
        ("/var/lib/queues", "ext4", False),
        ("/srv/share", "nfs4", True),
        ("/srv/share/queues/not/there", "nfs4", True),
        ("/srv/shared", "ext4", False),
        ("/srv/share/local/queues", "xfs", False),
        ("/srv/with space\\x/queues", "cifs", True),
        ("/mnt/twice/queues", "ext4", False),
        ("/home/me/remote/queues", "fuse.sshfs", True),
        ("/home/me/drive/queues", "fuseblk", False),
    ],
)
def test_the_innermost_latest_mount_counts(mountinfo, tmp_path, path, type_, network):
    mount = mount_of(type(tmp_path)(path), mountinfo)
    assert (mount.type, mount.is_network) == (type_, network)


def test_the_source_is_read_too(mountinfo, tmp_path):
    assert mount_of(type(tmp_path)("/srv/with space\\x"), mountinfo) == Mount(
        "/srv/with space\\x", "cifs", "//nas/a b"
    )


def test_a_link_is_followed(mountinfo, tmp_path):
    link = tmp_path / "queues"
    link.symlink_to("/srv/share/queues")
    assert mount_of(link, mountinfo).type == "nfs4"


def test_where_there_is_no_such_file_nobody_can_say(tmp_path):
    assert mount_of(tmp_path, tmp_path / "none") is None


def test_this_machine_says_something(tmp_path):
    mount = mount_of(tmp_path)
    assert mount is None or mount.type
