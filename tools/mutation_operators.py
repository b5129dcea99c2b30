# SPDX-License-Identifier: Apache-2.0
"""General mutations of C source: what a tired author types. Texts of messages, assertions, tables of declarations and comments are left
out."""
import collections
import hashlib
import re

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
# Calls that only make text for people, or only tell the kernel what will be needed: without them the program does the same.
TEXT_CALLS = r"\b(?:error_(?:set\w*|prefix|object|hint)|\w*fail\w*|\w*report\w*|assert|static_assert|_Static_assert|progress\w*)\s*\("
HINT_CALLS = re.compile(r"^(pthread_\w+_destroy|posix_fadvise|madvise|sync_file_range|store_write_behind|free|close|.*_free|.*_release|"
                        r".*_close|error_\w+|assert|progress\w*)$")
LITERAL = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)


def blanks(match):
    return re.sub(r"[^\n]", " ", match[0])


def end_of_call(code, start):
    """The position behind the bracket that closes the one at start."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == "(") - (code[i] == ")")
        if depth == 0:
            return i + 1
    return len(code)


def code_of(text):
    """The text with everything blank that is no code, and the bodies of functions alone."""
    code = DIRECTIVE.sub(blanks, LITERAL.sub(blanks, text))
    return bodies(code), code


def bodies(code):
    kept, depth, start = [" " if c != "\n" else c for c in code], 0, 0
    for m in re.finditer(r"[{};]", code):
        if m[0] == "{":
            if depth == 0:
                is_function = code[start:m.start()].rstrip().endswith(")")
                begin = m.start()
            depth += 1
        elif m[0] == "}":
            depth -= 1
            if depth == 0 and is_function:
                kept[begin:m.end()] = code[begin:m.end()]
        if depth == 0:
            start = m.end()
    return "".join(kept)


def without_messages(code):
    for m in re.finditer(TEXT_CALLS, code):
        end = end_of_call(code, m.end() - 1)
        code = code[:m.start()] + re.sub(r"[^\n]", " ", code[m.start():end]) + code[end:]
    return code


def comparisons(code, full):
    for m in re.finditer(r"(?<= )(<=|>=|==|!=|<|>|&&|\|\|)(?=[ \n])", code):
        yield m.start(), m.end(), SWAPS[m[0]]


def offsets(code, full):
    for m in re.finditer(r"(?<=[\w)\]] )([+-])(?= [\w(])", code):
        yield m.start(), m.end(), "-" if m[0] == "+" else "+"


def constants(code, full):
    for m in re.finditer(r"(?<![\w.'])(\d+|true|false)(?![\w.'])", code):
        if re.search(r"\bcase\s+$", code[:m.start()][-40:]):
            continue
        new = {"true": "false", "false": "true"}.get(m[0]) or str(int(m[0]) + 1 if m[0] != "1" else 0)
        yield m.start(), m.end(), new


def removed_calls(code, full):
    for m in re.finditer(r"(?<=[;{}\n])([ \t]+)((?:\(void\))?(\w+)\()", code):
        head = code[:m.start()].rstrip()
        end = end_of_call(code, m.end() - 1)
        is_statement = head.endswith((";", "{", "}", ")")) or head.endswith("else")
        is_call = m[3] not in ("if", "while", "for", "switch", "return", "sizeof")
        if code[end:end + 1] == ";" and is_statement and is_call and not HINT_CALLS.match(m[3]):
            yield m.start(2), end, "(void)0"


def removed_checks(code, full):
    """`if (…) return <an error>`: the condition never holds."""
    for m in re.finditer(r"\bif (\()", full):
        end = end_of_call(full, m.start(1))
        tail = full[end:end + 200].lstrip()
        if code[m.start():m.start()
                + 2] == "if" and re.match(r"return (status|-1|false|NULL|RESHARD_ERR|\w*fail\w*\(|error_\w+\(|\w*too_\w+\()", tail):
            yield m.start(1) + 1, end - 1, "0"


OPERATORS = {"comparison": comparisons, "offset": offsets, "constant": constants, "removed call": removed_calls,
             "removed check": removed_checks}


def candidates(file, text):
    code, full = code_of(text)
    code = without_messages(code)
    for name, operator in OPERATORS.items():
        for start, end, new in operator(code, full):
            line = text.count("\n", 0, start) + 1
            old = re.sub(r"\s+", " ", text[start:end])
            if name == "removed check":
                new = f"0 && ({text[start:end]})"
                what = f"{name} at line {line}: {old}"
            else:
                what = f"{name} at line {line}: {old} -> {new}" if name != "removed call" else f"{name} at line {line}: {old}"
            around = text[text.rfind("\n", 0, start) + 1:text.find("\n", end)].strip()
            yield {"file": file, "what": what, "operator": name, "line": line, "start": start, "end": end, "new": new, "around": around}


def all_candidates(root):
    return [m for path in sorted((root / "src").rglob("*.c")) for m in candidates(str(path.relative_to(root)), path.read_text())]


def sample(found, count, seed):
    """Every operator has an equal share, in an order that the seed decides; a larger sample begins with the smaller one. A place has its
    rank by its line's words, so that after a change to the source the same seed draws all others again."""
    drawn, seen = {name: [] for name in OPERATORS}, collections.Counter()
    for m in found:
        words = (seed, m["file"], m["operator"], m["around"], m["new"])
        seen[words] += 1
        drawn[m["operator"]].append((hashlib.sha256(repr((words, seen[words])).encode()).digest(), m))
    drawn = {name: [m for _, m in sorted(ranked, key=lambda pair: pair[0])] for name, ranked in drawn.items()}
    turns = [m for turn in range(max(map(len, drawn.values()), default=0)) for name in OPERATORS for m in drawn[name][turn:turn + 1]]
    return turns[:count]
