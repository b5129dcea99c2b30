#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of tools/tidy.py is seen to fail: a small tree that keeps them all, and one violation planted in it at a time. Prints TAP.

usage: tidy_test.py TIDY
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LICENSE = "/* SPDX-License-Identifier: Apache-2.0 */\n"
HASHED = "# SPDX-License-Identifier: Apache-2.0\n"
DRIVER = '\nconst struct format_driver format_{0} = {{\n    .name = "{0}",\n}};\n'
TREE = {
    "include/reshard/error.h": LICENSE + "#ifndef ERROR_H\n#define ERROR_H\nint error_of(void);\n#endif\n",
    "src/meson.build": HASHED
    + "files('base/text.c', 'formats/zarr/zarr.c', 'formats/hf/hf.c', 'formats/registry.c', 'engine/run.c', 'api/open.c')\n",
    "src/base/text.h": LICENSE + "#ifndef TEXT_H\n#define TEXT_H\n#include \"reshard/error.h\"\nint text_of(void);\n#endif\n",
    "src/base/text.c": LICENSE + '#include "base/text.h"\n\n#include <zlib.h>\n\nint text_of(void)\n{\n    return 1;\n}\n',
    "src/api/open.c": LICENSE + '#include "formats/driver.h"\n',
    "src/engine/run.c": LICENSE + '#include "base/text.h"\n\nint run(void)\n{\n    return text_of();\n}\n',
    "src/formats/driver.h": LICENSE + "#ifndef DRIVER_H\n#define DRIVER_H\nstruct format_driver {\n    const char *name;\n};\n#endif\n",
    "src/formats/registry.c": LICENSE + '#include "formats/driver.h"\n\n#include "formats/zarr/zarr.h"\n',
    "src/formats/zarr/zarr.h": LICENSE + '#ifndef ZARR_H\n#define ZARR_H\n#include "formats/driver.h"\nextern const struct format_driver '
                                         'format_zarr;\n#endif\n',
    "src/formats/zarr/zarr.c": LICENSE + '#include "formats/zarr/zarr.h"\n\n#include "base/text.h"\n' + DRIVER.format("zarr"),
    "src/formats/hf/hf.c": LICENSE + '#include "formats/driver.h"\n' + DRIVER.format("hf"),
    "cli/meson.build": HASHED + "files('main.c')\n",
    "cli/main.c": LICENSE + '#include "reshard/error.h"\n\nint main(void)\n{\n    return error_of();\n}\n',
    "docs/decisions/001-one.md": "# 001 One\n",
    "docs/TESTING.md": "| target | input | mutator |\n|---|---|---|\n| `json`, `zip` | texts | - |\n\n"
                       "| target | executions | lines reached |\n|---|---|---|\n| `json` | 7 | 80 % |\n| `zip` | 9 | 90 % |\n",
    "fuzz/targets.txt": "# words\njson json short\n src/base/text.c\nzip json long\n src/base/text.c\n",
    "tools/tool.py": "#!/usr/bin/env python3\n" + HASHED,
}
LONG_FUNCTION = "\nint long_one(void)\n{\n" + "    text_of();\n" * 80 + "    return 0;\n}\n"


def appended(text):
    return lambda old: old + text


def included(name):
    """Before the file's last include, or as its first."""
    return lambda old: re.sub(r"(?m)\A(.*\n)(#include .*\n)", rf'\1\2#include "{name}"' + "\n", old, count=1)


def replaced(old_text, new_text):
    return lambda old: old.replace(old_text, new_text)


# What is done, to which file, how, and what is said of it.
PLANTED = [
    ("a driver includes its sibling", "src/formats/hf/hf.c", included("formats/zarr/zarr.h"), "may not include \"formats/zarr/zarr.h\""),
    ("formats/ includes a driver outside the registry", "src/formats/driver.h", appended('#include "formats/zarr/zarr.h"\n'),
     "may not include \"formats/zarr/zarr.h\""),
    ("another layer includes a driver", "src/api/open.c", lambda old: LICENSE + '#include "formats/zarr/zarr.h"\n', "may not include"),
    ("a low layer includes a high one", "src/base/text.c", included("formats/driver.h"), "may not include \"formats/driver.h\""),
    ("the inside includes the public header", "src/engine/run.c", included("reshard/reshard.h"), "may not include \"reshard/reshard.h\""),
    ("the command looks inside", "cli/main.c", included("base/text.h"), "may not include \"base/text.h\""),
    ("our header in angle brackets", "src/engine/run.c", replaced('"base/text.h"', '<base/text.h>'), "<base/text.h> is ours"),
    ("another header comes before a file's own", "src/base/text.c", replaced('#include "base/text.h"\n\n#include <zlib.h>',
                                                                           '#include <zlib.h>\n#include "base/text.h"'),
     "expected its own header"),
    ("an exported function without the scope of its error", "src/api/open.c",
     appended("API_EXPORT int open_it(reshard_error *err)\n{\n    int one = 1;\n    return one;\n}\n"), "no ERROR_SCOPE(err)"),
    ("a fuzz target that no page tells", "docs/TESTING.md", replaced("`json`, `zip`", "`json`"),
     "fuzz target zip is not in the table | target | input"),
    ("a library behind two files", "src/engine/run.c", appended("#include <zlib.h>\n"), "zlib: its headers are included by 2 files"),
    ("a driver's name in another layer", "src/engine/run.c", appended('int is(const char *s)\n{\n    return strcmp(s, "zarr");\n}\n'),
     'asks for a driver by its name, which only its own folder may: "zarr" (line 10)'),
    ("a driver's name in another driver", "src/formats/hf/hf.c", appended('int is(struct str s)\n{\n    return str_is(s, "zarr");\n}\n'),
     '"zarr" (line'),
    ("a table of drivers' names", "src/engine/run.c", appended('static const char *const formats[] = { "hf", "zarr" };\n'), 'by its name'),
    ("a C line of 141 columns", "src/engine/run.c", appended("//" + "x" * 139 + "\n"), "1 lines of more than 140 columns"),
    ("a C line that ends in a blank", "src/engine/run.c", appended("int a; \n"), "1 lines end in blanks"),
    ("a Python line of 141 columns", "tools/tool.py", appended("#" + "x" * 140 + "\n"),
     "tools/tool.py:3: 1 lines of more than 140 columns"),
    ("a long function", "src/engine/run.c", appended(LONG_FUNCTION), "long_one has 84 lines"),
    ("a label that is not out", "src/engine/run.c", appended("\nint jump(void)\n{\n    goto fail;\nfail:\n    return 0;\n}\n"),
     "goto fail: the only label is out"),
    ("a path with its password", "cli/main.c", appended("\nvoid told(const struct options *options)\n{\n    puts(options->paths[0]);\n}\n"),
     "prints a path as it was given"),
    ("a name put together by printf", "src/engine/run.c",
     appended('\nchar *joined(struct arena *a, int n, const char *s)\n{\n    return arena_printf(a, "%.*s.bias", n, s);\n}\n'),
     "a name is put together by ARENA_JOIN"),
    ("an array with slack", "src/engine/run.c", appended("\nvoid *many(int n)\n{\n    return calloc(n + 1, 4);\n}\n"),
     "array_new or array_zeroed"),
    ("an array of unchecked bytes", "src/engine/run.c", appended("\nint *more(int n)\n{\n    return malloc(n * sizeof(int));\n}\n"),
     "array_new or array_zeroed"),
    ("functions of one name", "src/engine/run.c", appended("\nstatic int text_of(void)\n{\n    return 1;\n}\n"),
     "text_of: is a function of several files: text.c, run.c"),
    ("a function that nobody calls", "src/base/text.h", replaced("int text_of(void);", "int text_of(void);\nint other_of(void);"),
     "nobody calls other_of"),
    ("two decisions of one number", "docs/decisions/001-two.md", lambda old: "# 001 Two\n",
     "number is taken twice: 001-one.md, 001-two.md"),
    ("a test that the page of upstream tests names is not there", "docs/conformance.md",
     lambda old: "| upstream | case | `no_such_test` |\n", "docs/conformance.md:1: `no_such_test` is no test"),
    ("a file of tests that is not there", "docs/conformance.md",
     lambda old: "| upstream | case | `test_none.c` |\n", "`test_none.c` is no test"),
    ("a long file", "src/engine/run.c", appended("\n" * 1000), "lines, at most 1000"),
    ("a file without its licence", "src/engine/run.c", replaced(LICENSE, "/* mine */\n"),
     "expected 'SPDX-License-Identifier: Apache-2.0' here"),
    ("a script without its licence", "tools/tool.py", replaced(HASHED, "# mine\n"), "tools/tool.py:2: expected 'SPDX"),
    ("a file that is not built", "src/meson.build", replaced("'engine/run.c'", ""), "src/engine/run.c: no meson.build names it"),
    ("two files of one name", "src/engine/text.h", lambda old: LICENSE, "text.h: is not unique"),
    ("a header that does not stand alone", "src/base/text.h", appended("extern size_t none;\n"),
     "does not compile alone as gnu17"),
    ("a public header that C++ does not take", "include/reshard/error.h", replaced("int error_of(void);", "int error_of(int class);"),
     "does not compile alone as c++11"),
]
KEPT = [
    ("a driver's own name in its own folder", "src/formats/zarr/zarr.c",
     appended('int is(const char *s)\n{\n    return strcmp(s, "zarr");\n}\n')),
    ("a Python module of the same name", "src/engine/run.c",
     appended('int is(struct str module)\n{\n    return str_is(module, "zarr");\n}\n')),
    ("a driver's name in a comment", "src/engine/run.c", appended('/* not strcmp(s, "zarr") */\n')),
    ("a line of 140 columns", "src/engine/run.c", appended("//" + "x" * 138 + "\n")),
]


def tidied(tidy, name, change):
    """What tidy prints of the tree, in which one file is changed."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {**TREE, **({name: change(TREE.get(name, ""))} if name else {})}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        done = subprocess.run([sys.executable, tidy, root], capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tidy")
    tidy = parser.parse_args().tidy
    cases = [("a tree that keeps all rules", None, None, None)] + [(*kept, None) for kept in KEPT] + PLANTED
    print(f"1..{len(cases) + 1}")
    failed = 0
    for number, (what, name, change, said) in enumerate(cases, 1):
        if said and "c++" in said and not shutil.which(os.environ.get("CXX", "c++").split()[0]):
            print(f"ok {number} - {what} # SKIP no C++ compiler")
            continue
        status, text = tidied(tidy, name, change)
        # One violation makes one complaint: nothing else turned red by accident.
        good = (status == 1 and said in text and " 1 do not" in text) if said else (status == 0 and " 0 do not" in text)
        failed += not good
        print(f"{'ok' if good else 'not ok'} {number} - {what}" + ("" if good else "\n# " + text.replace("\n", "\n# ")), flush=True)
    program = pathlib.Path(tidy).read_text(encoding="utf-8")
    rules = re.findall(r"^def (check_\w+)", program, re.M)
    idle = [rule for rule in rules if program.count(rule + "(") < 2]
    is_good = bool(rules) and not idle
    failed += not is_good
    print(f"{'ok' if is_good else 'not ok'} {len(cases) + 1} - every rule is asked" + (f"\n# {idle}" if idle else ""))
    return 1 if failed else 0


sys.exit(main())
