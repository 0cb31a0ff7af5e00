"""Tests of the documentation site in Chromium.

No page is wider than the screen, and each has its navigation. The tests need Chromium (``apt install chromium``), so
only ``make soak`` runs them (``make soak ONLY=site``).
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHONE, DESKTOP = 390, 1440
_MEASURE = """<body><pre id=out></pre><script>
const pages = PAGES, width = WIDTH, wide = [];
const load = (page) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  frame.src = "/" + page;
  frame.onload = () => setTimeout(() => { done(frame.contentDocument); frame.remove(); }, 50);
  document.body.appendChild(frame);
});
const cut = (found) => [...found.querySelectorAll("article table, article img")].filter(
  (each) => each.getBoundingClientRect().right > width + 1 && !each.closest("[style*=overflow]")).length;
(async () => {
  for (const page of pages) {
    const found = await load(page);
    if (found.documentElement.scrollWidth > width + 1 || cut(found)) wide.push(page);
    if (!found.querySelector("nav.md-nav--primary")) wide.push(page + " has no navigation");
  }
  document.getElementById("out").textContent = "MEASURED " + pages.length + " " + JSON.stringify(wide);
})();
</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif("SITE_WIDTHS" not in os.environ, reason="needs Chromium: make soak ONLY=site"),
]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "install Chromium (apt install chromium)"
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, once for all tests."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return directory


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site on loopback."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _dom(chromium: str, url: str, profile: Path) -> str:
    """Return the page after its scripts have run."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=600000",
    ]
    done = subprocess.run([chromium, *flags, "--dump-dom", url], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_no_page_is_wider_than_the_screen(chromium: str, site: Path, address: str, tmp_path: Path, width: int) -> None:
    pages = sorted(
        page.parent.relative_to(site).as_posix().removeprefix(".") + "/" for page in site.rglob("index.html")
    )
    pages = [page.removeprefix("/") for page in pages]
    (site / "_measure.html").write_text(_MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width)))
    found = re.search(r"MEASURED (\d+) (\[.*?\])<", _dom(chromium, f"{address}/_measure.html", tmp_path))
    assert found is not None, "the browser measured the pages"
    assert int(found[1]) == len(pages) > 50
    assert json.loads(found[2].replace("&quot;", '"')) == []
