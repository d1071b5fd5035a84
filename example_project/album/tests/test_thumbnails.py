"""Thumbnails: the pictures themselves and how they get into place."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from PIL import Image

from album import thumbnails
from album.tests.support import AlbumTestCase, picture


class ThumbnailTests(AlbumTestCase):
    """`album.thumbnails`."""

    def original(self, content: bytes) -> Path:
        """An original on the disk."""
        path = self.directory / "original"
        path.write_bytes(content)
        return path

    def sizes(self, photo_id: str) -> list[tuple[int, int]]:
        """Sizes of the thumbnails, the large one first; each is decoded completely."""
        sizes = []
        for path in thumbnails.paths(photo_id):
            with Image.open(path) as opened:
                opened.load()
                sizes.append(opened.size)
        return sizes

    def test_keeps_the_proportions_and_the_longest_side(self) -> None:
        rendered = thumbnails.render(self.original(picture((3200, 1600))), "a")
        self.assertEqual(self.sizes("a"), [(1600, 800), (480, 240)])
        self.assertEqual((rendered.width, rendered.height), (3200, 1600))

    def test_never_enlarges(self) -> None:
        thumbnails.render(self.original(picture((100, 60))), "a")
        self.assertEqual(self.sizes("a"), [(100, 60), (100, 60)])

    def test_turns_what_the_camera_stored_sideways(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6  # turn clockwise by 90 degrees
        thumbnails.render(self.original(picture((400, 200), exif=exif)), "a")
        self.assertEqual(self.sizes("a"), [(200, 400), (200, 400)])

    def test_takes_every_kind_of_pixel(self) -> None:
        for mode, file_format in [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("RGBA", "WEBP")]:
            with self.subTest(mode=mode, file_format=file_format):
                rendered = thumbnails.render(self.original(picture(mode=mode, file_format=file_format)), "a")
                self.assertRegex(rendered.colour, r"^#[0-9a-f]{6}$")

    def test_rendering_again_gives_the_same_files(self) -> None:
        original = self.original(picture((2000, 1000)))
        thumbnails.render(original, "a")
        before = {path: path.read_bytes() for path in thumbnails.paths("a")}
        thumbnails.render(original, "a")
        self.assertEqual({path: path.read_bytes() for path in thumbnails.directory().iterdir()}, before)

    def test_a_file_that_breaks_off_raises_and_leaves_nothing(self) -> None:
        content = picture((2000, 1000))
        with self.assertRaisesRegex(OSError, "truncated"):
            thumbnails.render(self.original(content[: len(content) // 2]), "a")
        self.assertFalse(thumbnails.directory().exists())

    def test_the_next_run_clears_away_what_a_killed_one_left(self) -> None:
        target = thumbnails.paths("a")[0]
        with mock.patch("os.replace", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            thumbnails.put_in_place(target, b"half")
        self.assertEqual(len(list(target.parent.iterdir())), 1)
        thumbnails.put_in_place(target, b"whole")
        self.assertEqual([path.read_bytes() for path in target.parent.iterdir()], [b"whole"])

    def test_two_deliveries_at_once_leave_one_file(self) -> None:
        target = thumbnails.paths("a")[0]
        replace = os.replace

        def other_delivery_is_faster(source: str, destination: Path) -> None:
            with mock.patch("os.replace", replace):
                thumbnails.put_in_place(target, b"the picture")
            replace(source, destination)

        with mock.patch("os.replace", other_delivery_is_faster):
            thumbnails.put_in_place(target, b"the picture")
        self.assertEqual([path.read_bytes() for path in target.parent.iterdir()], [b"the picture"])

    def test_the_web_server_may_read_them(self) -> None:
        thumbnails.put_in_place(thumbnails.paths("a")[0], b"x")
        self.assertEqual(thumbnails.paths("a")[0].stat().st_mode & 0o777, 0o644)
