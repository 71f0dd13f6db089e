"""The moving picture of the console: `python docs/tools/record_console.py` writes docs/images/console.gif.

It starts `melon serve --demo` and takes screenshots with Chromium while the service learns (eight minutes). It needs
the extra `serve`, playwright (of the extra `dev`) and a `chromium` on the path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "images" / "console.gif"
WIDTH, HEIGHT, SHOTS, EVERY_S = 1180, 700, 60, 7.0
FRAMES, FRAME_MS, LAST_MS = 16, 500, 4_000


def screenshots(folder: Path) -> list[Path]:
    """One picture every few seconds, from the first charts on."""
    command = [sys.executable, "-m", "melon", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            return _screenshots(_address(server.stdout), folder)
        finally:
            server.terminate()


def _address(lines: IO[str] | None) -> str:
    for line in lines or ():
        if found := re.search(r"http\S+#key=\S+", line):
            return found[0]
    raise SystemExit("melon serve --demo ended before it named its address; run it by hand")


def _screenshots(address: str, folder: Path) -> list[Path]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector("canvas", timeout=600_000)
        paths = []
        for number in range(SHOTS):
            paths.append(folder / f"{number:03d}.png")
            page.screenshot(path=paths[-1])
            time.sleep(EVERY_S)
        browser.close()
    return paths


def animate(paths: list[Path], out: Path = PICTURE) -> None:
    """Some of the pictures, smaller and in few colours, as one that repeats; the last one stays for a while."""
    chosen = [paths[round(place * (len(paths) - 1) / (FRAMES - 1))] for place in range(FRAMES)]
    pictures = []
    for path in chosen:
        with Image.open(path) as shot:
            pictures.append(shot.convert("RGB").resize((WIDTH * 3 // 4, HEIGHT * 3 // 4), Image.Resampling.LANCZOS))
    # One palette for all, from the picture with the most lines, so that only what changes is stored.
    palette = pictures[-1].quantize(255, method=Image.Quantize.MEDIANCUT)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    times = [FRAME_MS] * (FRAMES - 1) + [LAST_MS]
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    print(f"{out}: {out.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        animate(screenshots(Path(temporary)))
