#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs` in a real browser, opened from its folder: the search finds what is asked for, nothing is loaded from elsewhere.

usage: site_browser.py SITE      ends with `N passed, N failed`
"""
import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

# What somebody types, and the page that must be among the first eight.
QUERIES = {"strip-prefix": "reshard-hash(1)", "salvage damaged": "Salvage", "reshard_read_many": "reshard/state.h",
           "five commonest": "Home", "--max-shard-size": "For users of Hugging Face", "completion words": "reshard-completion(1)"}


def check_search(page, query, wanted):
    page.locator("#mkdocs-search-query").fill(query)
    page.wait_for_function("document.querySelectorAll('#mkdocs-search-results article').length > 0")
    titles = page.locator("#mkdocs-search-results h3").all_inner_texts()
    assert wanted in " ".join(titles[:8]), titles[:8]
    links = page.locator("#mkdocs-search-results h3 a").evaluate_all("all => all.map(a => a.href)")
    assert all(pathlib.Path(link.removeprefix("file://").split("#")[0]).is_file() for link in links), links


def check_no_result(page):
    page.locator("#mkdocs-search-query").fill("zzzyx")
    assert page.locator("#mkdocs-search-results").inner_text() == "No results found"


def check_from_a_page(page, site):
    """The field beside every page leads to the same."""
    page.goto((site / "users" / "fsdp.html").as_uri())
    page.get_by_placeholder("Search docs").fill("mesh")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#mkdocs-search-results article').length > 0")


def main():
    site, failed = pathlib.Path(sys.argv[1]).resolve(), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page, elsewhere = browser.new_page(), []
        page.on("pageerror", lambda error: elsewhere.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith(site.as_uri()) else None)
        page.goto((site / "search.html").as_uri())
        checks = [(f"'{query}' finds {wanted}", check_search, (page, query, wanted)) for query, wanted in QUERIES.items()]
        checks += [("what is nowhere is not found", check_no_result, (page,)), ("search from a page", check_from_a_page, (page, site))]
        for name, check, arguments in checks:
            try:
                check(*arguments)
                print(f"ok: {name}")
            except Exception as error:  # whatever goes wrong is this check's failure, not the end of the others
                failed += 1
                print(f"FAILED: {name}: {str(error)[:500]}")
        browser.close()
    failed += bool(elsewhere)
    print("FAILED" if elsewhere else "ok", "nothing goes wrong or is loaded from elsewhere", *elsewhere[:3])
    print(f"{len(QUERIES) + 3 - failed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
