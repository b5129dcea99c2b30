/* SPDX-License-Identifier: Apache-2.0 */
/* Search of the site, in place of mkdocs' own, which asks a server for its index: this one works from a folder too. */
"use strict";
(function () {
    const query = document.getElementById("mkdocs-search-query"), results = document.getElementById("mkdocs-search-results");
    if (!query || !results)
        return;
    let index;
    const pages = new Map();

    function load(name, done) {
        const script = document.createElement("script");
        script.src = base_url + "/search/" + name;
        script.onload = done;
        document.head.append(script);
    }

    function show(page) {
        const article = document.createElement("article"), title = document.createElement("h3"), link = document.createElement("a"),
            text = document.createElement("p");
        link.href = base_url + "/" + page.location;
        link.textContent = page.title;
        text.textContent = page.text.slice(0, 200);
        title.append(link);
        article.append(title, text);
        results.append(article);
    }

    /* Every word must be on the page; what lunr takes for operators in names of options is text here. */
    function search() {
        const words = query.value.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);
        results.replaceChildren();
        const found = words.length ? index.query(all => words.forEach((word, at) => {
            const presence = lunr.Query.presence.REQUIRED, last = at === words.length - 1;
            all.term(lunr.stemmer(new lunr.Token(word)).toString(), { presence, wildcard: last ? lunr.Query.wildcard.TRAILING : 0 });
        })) : [];
        found.forEach(one => show(pages.get(one.ref)));
        if (!found.length)
            results.append(Object.assign(document.createElement("p"), { textContent: words.length ? "No results found" : "" }));
    }

    function begin() {
        index = lunr(function () {
            this.ref("location");
            this.field("title", { boost: 10 });
            this.field("text");
            this.pipeline.remove(lunr.stopWordFilter);
            for (const page of site_pages) {
                this.add(page);
                pages.set(page.location, page);
            }
        });
        query.value = new URLSearchParams(location.search).get("q") || query.value;
        query.addEventListener("input", search);
        search();
    }
    load("lunr.js", () => load("pages.js", begin));
})();
