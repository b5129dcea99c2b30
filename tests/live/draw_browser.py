#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of draw in a real browser, Debian's chromium: a click on a tensor tells rank, file and offset; keyboard alone suffices; axe
finds nothing in light and dark; names out of hostile files stay text; nothing is loaded from anywhere. Prints TAP.

usage: draw_browser.py --bin RESHARD --root FIXTURES
"""
import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

HOSTILE = ["</script><script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">.weight", "a&amp;b.\"q'",
           "evil\u202egnp.weight", "layers.0.<b>x</b>", "]]>--><svg onload=document.title='owned'>", "\u2028line"]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def safetensors(path, tensors):
    header, at = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


class Pages:
    """A folder with pages, and a browser that looks at them."""

    def __init__(self, binary, fixtures, work, browser):
        self.binary, self.fixtures, self.work, self.browser = binary, fixtures, work, browser

    def reshard(self, *words, status=0):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.work, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"{words}: exit {done.returncode}: {done.stderr[:300]}"
        return done.stdout

    def open(self, name, scheme="light"):
        """The page; what it complains of, and what it asks of a network, is an error."""
        page = self.browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme).new_page()
        page.problems = []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.problems.append(request.url) if not request.url.endswith("/" + name) else None)
        page.goto((self.work / name).as_uri())
        return page


def accessible(page):
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()[:1500]
    assert not page.problems, page.problems


def llama(pages, name, change=None):
    tensors = {"model.embed_tokens.weight": [64, 16], "lm_head.weight": [64, 16]}
    for layer in range(6):
        tensors |= {f"model.layers.{layer}.mlp.down_proj.weight": [16, 44], f"model.layers.{layer}.self_attn.q_proj.weight": [16, 16]}
    values = {key: [float(i % 97) for i in range(shape[0] * shape[1])] for key, shape in tensors.items()}
    if change:
        change(values)
    return safetensors(pages.work / name, {key: ("F32", tensors[key], floats(values[key])) for key in values}).name


def test_click(pages):
    """The map of a checkpoint of several ranks: what a click tells is what `ls --chunks` tells."""
    pages.reshard("convert", llama(pages, "m.safetensors"), "dcp", "--to", "torch-dcp", "--layout", "ranks=4")
    pages.reshard("draw", "dcp", "map.html")
    key = "model.layers.2.mlp.down_proj.weight"
    listed = next(t for t in json.loads(pages.reshard("ls", "dcp", "--chunks", "--json"))["tensors"] if t["key"] == key)
    page = pages.open("map.html")
    page.get_by_role("button", name="down_proj.weight").click()
    page.get_by_label("Tensor of this row").select_option(label=key)
    page.locator("svg.tiles rect.piece").nth(2).click()
    cells = page.locator("table.pieces tr.on td").all_inner_texts()
    chunk = listed["chunks"][2]
    assert cells[0] == "2" and cells[2] == chunk["file"], (cells, chunk)
    assert re.sub(r"\D", "", cells[3]) == str(chunk["offset"]) and cells[4] == str(chunk["bytes"]), (cells, chunk)
    assert cells[1] == f"[{chunk['start'][0]}:{chunk['start'][0] + chunk['extent'][0]}, 0:44]", cells
    label = page.locator("svg.tiles rect.piece").nth(2).get_attribute("aria-label")
    assert label.startswith("rank 2") and chunk["file"] in label and f"offset {chunk['offset']}" in label, label
    accessible(page)


def test_keyboard(pages):
    page = pages.open("map.html")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "lm_head.weight":
            break
    page.keyboard.press("Enter")
    assert page.locator("#tensor").inner_text() == "lm_head.weight"
    assert page.locator("button.key[aria-expanded=true]").count() == 1
    page.locator("svg.tiles rect.piece").first.focus()
    page.keyboard.press("Tab")
    assert page.locator("table.pieces tr.on td").first.inner_text() == "1"
    page.get_by_role("searchbox").fill("q_proj")
    assert page.locator("tr.row:visible").count() == 1 and page.locator("tr.group:visible").count() == 1
    accessible(page)


def test_light_and_dark(pages):
    grounds = []
    for scheme in ("light", "dark"):
        page = pages.open("map.html", scheme)
        page.get_by_role("button", name="q_proj.weight").click()
        accessible(page)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1], grounds


def test_copies_and_gaps(pages):
    pages.reshard("draw", pages.fixtures / "megatron/megatron-dense-legacy-tp2pp2/ckpt", "copies.html")
    page = pages.open("copies.html", "dark")
    assert page.locator("td svg path.hatch").count() >= 1
    assert "hatched: a copy" in page.locator(".legend").inner_text()
    accessible(page)
    pages.reshard("draw", pages.fixtures / "torch-dcp/bad-dcp-gap/ckpt", "holes.html")
    page = pages.open("holes.html")
    assert page.locator("td svg path.lost").count() >= 1 and "not complete" in page.locator(".notice").inner_text()
    assert page.locator("span.gap").count() >= 1
    accessible(page)


def test_overlap(pages):
    pages.reshard("draw", pages.fixtures / "torch-dcp/bad-dcp-overlap/ckpt", "overlap.html")
    page = pages.open("overlap.html")
    assert "overlap" in page.locator(".notice").last.inner_text() and page.locator("td svg path.lost-line").count() == 1
    page.locator("tr.row", has=page.locator("span.gap")).get_by_role("button").click()
    assert page.locator("svg.tiles path.overlap").count() >= 1
    accessible(page)
    for words in (["cat", "w"], ["hash"], ["draw", "--to", "torch-dcp"]):
        pages.reshard(words[0], pages.fixtures / "torch-dcp/bad-dcp-overlap/ckpt", *words[1:], status=4)


def test_before_and_after(pages):
    pages.reshard("draw", "dcp", "move.html", "--to", "torch-dcp", "--layout", "ranks=2")
    data = json.loads(pages.reshard("draw", "dcp", "--to", "torch-dcp", "--layout", "ranks=2", "--json"))
    plan = json.loads(pages.reshard("plan", "dcp", "--to", "torch-dcp", "--layout", "ranks=2", "--json"))
    assert sum(bytes_ for _, _, bytes_ in data["moves"]) == plan["write_bytes"], (data["moves"], plan)
    page = pages.open("move.html")
    assert [h.strip() for h in page.locator("h2").all_inner_texts()] == ["What moves", "Before", "After"]
    assert page.locator("td.stays").count() == 2 and "change their rank" in page.locator("main").inner_text()
    accessible(page)
    accessible(pages.open("move.html", "dark"))


def test_differences(pages):
    def change(values):
        rows = values["model.layers.3.self_attn.q_proj.weight"]
        rows[:128] = rows[64:128] + rows[:64]
        values["model.layers.4.mlp.down_proj.weight"][7] = float("nan")
        del values["model.layers.5.mlp.down_proj.weight"]

    llama(pages, "changed.safetensors", change)
    pages.reshard("draw", "--diff", "dcp", "changed.safetensors", "differs.html", status=1)
    page = pages.open("differs.html")
    assert "3 of 14 tensors differ" in page.locator("main").inner_text()
    assert {"N", "−", "="} <= set(page.locator(".heat button").all_inner_texts())
    page.get_by_role("button", name=re.compile("^layer 3 self_attn.q_proj.weight")).click()
    fills = page.locator("svg.tiles rect").evaluate_all("all => all.map(r => [Number(r.getAttribute('y')), r.style.fill])")
    changed = {y for y, fill in fills if fill.startswith("rgba")}
    assert len(changed) == 8, changed  # a band: half of sixteen rows
    assert page.locator("svg.tiles path").count() == 4  # the frame, and three seams between four ranks
    accessible(page)
    page = pages.open("differs.html", "dark")
    page.get_by_role("button", name=re.compile("^layer 4 mlp.down_proj.weight")).focus()
    page.keyboard.press("Enter")
    assert page.locator("svg.tiles rect").count() > 0 and "layers.4" in page.locator("#details").inner_text()
    accessible(page)


def test_experts(pages):
    """A cell of experts has them one by one, by number: one of 16 differs, one is missing."""
    def experts(name, changed, lost):
        first = {(layer, i): layer * 100 + i + (100 if (layer, i) == changed else 0) for layer in range(2) for i in range(16)}
        keys = {f"model.layers.{layer}.mlp.experts.{i}.w1.weight": floats([float(value + j) for j in range(8)])
                for (layer, i), value in first.items()}
        return safetensors(pages.work / name, {key: ("F32", [8], data) for key, data in keys.items()
                                               if key != f"model.layers.1.mlp.experts.{lost}.w1.weight"}).name

    pages.reshard("draw", "--diff", experts("e.safetensors", None, None), experts("f.safetensors", (0, 10), 3), "experts.html", status=1)
    page = pages.open("experts.html")
    grids = page.locator(".heat .experts")
    assert grids.count() == 2 and grids.nth(0).locator("i").count() == 16
    painted = grids.nth(0).locator("i").evaluate_all("all => all.map((i, at) => [at, i.style.background, i.title]).filter(i => i[1])")
    assert [part[0] for part in painted] == [10] and painted[0][2].startswith("10: 100"), painted
    marked = grids.nth(1).locator("i").evaluate_all("all => all.map((i, at) => [at, i.className]).filter(i => i[1])")
    assert marked == [[3, "lost-part"]], marked
    accessible(page)
    accessible(pages.open("experts.html", "dark"))


def test_hostile_names(pages):
    safetensors(pages.work / "hostile.safetensors", {key: ("F32", [1], floats([1.0])) for key in HOSTILE})
    pages.reshard("draw", "hostile.safetensors", "hostile.html")
    page = pages.open("hostile.html")
    assert page.title() == "Where the tensors lie", page.title()
    text = page.locator("table.map").inner_text()
    for word in ("</script>", "<img", "a&amp;b", "\\u{202e}", "<b>x</b>", "]]>"):
        assert word in text, (word, text)
    assert "\u202e" not in text
    accessible(page)
    pages.reshard("draw", "hostile.safetensors", "hostile.svg")
    page = pages.open("hostile.svg")
    assert page.evaluate("document.querySelectorAll('script, img').length") == 0 and not page.problems, page.problems


def test_pictures_of_the_manual(pages):
    """Those in docs/pictures are what the command draws today."""
    kept = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pictures"
    for name, folder in (("dcp", "torch-dcp/dcp-tp-fsdp-2d"), ("megatron", "megatron/megatron-moe-legacy-tp2ep2"),
                         ("paddle", "paddle/paddle-fc-4ranks-grid")):
        pages.reshard("draw", pages.fixtures / folder / "ckpt", name + ".svg")
        assert (pages.work / (name + ".svg")).read_text() == (kept / (name + ".svg")).read_text(), f"{name}.svg is not as it is drawn"


def test_print(pages):
    page = pages.open("map.html")
    page.emulate_media(media="print")
    assert page.locator(".tools").first.is_hidden()
    assert len(page.pdf()) > 10000
    shown = page.locator("tr.row").count()
    assert shown and page.locator("tr.row:visible").count() == shown, "what the screen has is not on paper"


def test_many_pieces(pages):
    """10^5 pieces: the page holds a part of them, and says so."""
    keys = {f"layers.{i}.w": ("F32", [1000, 1], bytes(4000)) for i in range(100)}
    safetensors(pages.work / "many.safetensors", keys)
    pages.reshard("convert", "many.safetensors", "many", "--to", "torch-dcp", "--layout", "ranks=1000", "--no-sync")
    pages.reshard("draw", "many", "many.html")
    size = (pages.work / "many.html").stat().st_size
    assert size < 3_000_000, size
    page = pages.open("many.html")
    page.locator("button.key").first.click()
    assert "further pieces are not listed" in page.locator("#details").inner_text()
    accessible(page)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    args = parser.parse_args()
    tests = [(name, f) for name, f in globals().items() if name.startswith("test_")]
    failed = 0
    print(f"1..{len(tests)}")
    with tempfile.TemporaryDirectory(prefix="reshard-draw-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pages = Pages(str(args.bin.resolve()), args.root.resolve(), pathlib.Path(folder), browser)
        for number, (name, test) in enumerate(tests, 1):
            try:
                test(pages)
                print(f"ok {number} - {name[5:].replace('_', ' ')}", flush=True)
            except Exception as error:  # whatever goes wrong is this test's failure, not the end of the others
                failed += 1
                lines = f"{type(error).__name__}: {error}"[:2000].splitlines()
                print("\n# ".join([f"not ok {number} - {name[5:].replace('_', ' ')}", *lines]), flush=True)
        browser.close()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
