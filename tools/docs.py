#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the documentation site: tools/docs.py WORK OUT, by make docs.

The pages of the repository, which link each other as files, become one tree in WORK/source; pages of the C
and of the Python functions are made from include/loam.h and from docstrings. Sphinx makes HTML of it, with
warnings as errors, and then every link of every page must lead somewhere."""

import argparse
import ast
import html.parser
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "loam_attn"
OTHERS = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
HEADER, EXPERIMENTS = "include/loam.h", "docs/experiments/"


# ------------------------------------------------------------------ the tree


def places():
    """Where each page of the repository is in the site."""
    found = dict(OTHERS)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = page.relative_to(ROOT).as_posix()
        place = path.removeprefix("docs/").removeprefix("site/")
        found[path] = re.sub("README.md$", "index.md", place)
    return found


def relink(text, path, found):
    """The page with its links as those of the site."""

    def change(match):
        mark, label, target = match.groups()
        if re.match("[a-z]+:", target) or target.startswith("#"):
            return match[0]
        name, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(path), name))
        here = os.path.dirname(found[path])
        if there == HEADER:
            return f"[{label}]({os.path.relpath('c.md', here)})"
        if there in found:
            place = os.path.relpath(found[there], here)
            return f"[{label}]({place}{'#' + anchor if anchor else ''})"
        if there.startswith(EXPERIMENTS) and not there.endswith(".svg"):
            place = os.path.relpath(there.removeprefix("docs/"), here)
            return f'<a href="{place}">{label}</a>'
        if there.startswith("docs/") and there.endswith(".svg"):
            return f"{mark}[{label}]({os.path.relpath(there.removeprefix('docs/'), here)})"
        if not (ROOT / there).exists():
            return match[0]
        # Sources are not of the site.
        return f"{label} (`{there}`)" if label != there and label.strip("/") != there else f"`{there}`"

    parts = re.split("(^```.*?^```$)", text, flags=re.S | re.M)
    parts[::2] = [re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", change, part) for part in parts[::2]]
    return "".join(parts)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def complete(index, found):
    """The first page, whose contents list what it does not name in place of REST."""
    listed = set(re.findall(r"^(?:[A-Z]\w+ <)?([a-z][\w/-]*)>?$", index, re.M))
    rest = [place.removesuffix(".md") for place in found.values()]
    return index.replace("REST", "\n".join(page for page in rest if page not in listed | {"index"}))


def assemble(source):
    shutil.rmtree(source, ignore_errors=True)
    found = places()
    for path, place in found.items():
        text = relink((ROOT / path).read_text(), path, found)
        write(source / place, complete(text, found) if place == "index.md" else text)
    for picture in (ROOT / "docs").rglob("*.svg"):
        place = source / picture.relative_to(ROOT / "docs")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, place)
    # Reports of experiments are HTML already, with pictures and tables beside them.
    extra = source / "extra" / "experiments"
    shutil.copytree(ROOT / EXPERIMENTS, extra, ignore=shutil.ignore_patterns("*.md"))
    for name in "conf.py", "style.css":
        text = (ROOT / "docs" / "site" / name).read_text()
        write(source / name, text.replace("Path(__file__).resolve().parents[2]", f"Path({str(ROOT)!r})"))
    write(source / "c.md", c_reference((ROOT / HEADER).read_text()))
    api = source / "api.md"
    api.write_text(api.read_text().replace("FUNCTIONS", python_reference()))


# ------------------------------------------------------------------ the C reference


def chunks_of(text):
    """Declarations with their comments: lines between empty ones, and whole bodies."""
    chunk, depth = [], 0
    for line in text.split("\n"):
        if line.strip() or depth:
            chunk.append(line)
            depth += line.count("{") - line.count("}")
        elif chunk:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def names_of(chunk):
    """What a chunk declares: types, functions and macros."""
    text = re.sub(r"/\*.*?\*/", "", "\n".join(chunk), flags=re.S)
    found = re.findall(r"^#define (LOAM_[A-Z_]+)(?= )", text, re.M)
    found += re.findall(r"^(?:LOAM_API|static inline) [^(;]*?\b(loam_\w+)\(", text, re.M)
    found += re.findall(r"^\} (loam_\w+);|^typedef struct \w+ (loam_\w+);", text, re.M)
    return [name if isinstance(name, str) else next(filter(None, name)) for name in found]


def prose(comment):
    """A comment as text: indented lines stay as they are."""
    lines = [re.sub(r"^ ?\*? ?", "", line.rstrip()) for line in comment.split("\n")]
    out, code = [], False
    for line in lines:
        is_code = line.startswith("    ") or (code and not line)
        if is_code != code:
            out += ["```"] if code else ["", "```text"]
        code = is_code
        out.append(line[4:] if is_code else re.sub(r"([*_<>|\[\]])", r"\\\1", line))
    return "\n".join(out + ["```"] * code).strip() + "\n"


def section_of(title, body):
    out = [f"## {title[0].upper()}{title[1:]}\n"]
    comment = re.match(r"\s*/\*\n?(?P<text>.*?)\*/", body, re.S)
    if comment and "\n" in comment["text"].strip():
        out.append(prose(comment["text"]))
        body = body[comment.end() :]
    for chunk in chunks_of(body):
        names = names_of(chunk)
        if names:
            out.append("### " + ", ".join(f"`{name}`" for name in names) + "\n")
        out.append("```c\n" + "\n".join(chunk) + "\n```\n")
    return "\n".join(out)


def c_reference(header):
    """A page of the header: its sections, with a heading for what each of its parts declares."""
    first = re.match(r"/\* SPDX[^\n]*\n(?P<text>.*?)\*/", header, re.S)
    body = header[first.end() :]
    body = body[body.index("#define LOAM_VERSION_MAJOR") : body.index("#ifdef __cplusplus\n}")]
    parts = re.split(r"^/\* -{20,} (.*?) \*/$|^/\* -{20,} ([^\n]*)\n(?= \*)", body, flags=re.M)
    # A section whose title opens a comment: what follows is the rest of it.
    out = ["# C reference\n", "All of `include/loam.h`, in its order.\n", prose(first["text"])]
    out.append("## Version and limits\n\n```c\n" + parts[0].strip() + "\n```\n")
    for i in range(1, len(parts), 3):
        out.append(section_of(parts[i] or parts[i + 1], "/*\n" * (not parts[i]) + parts[i + 2]))
    return "\n".join(out)


# ------------------------------------------------------------------ the Python reference


def first_sentence(path):
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or path.stem).split("\n\n")[0].split())
    return re.split(r"[.:;](?: |$)", text)[0]


def exported():
    """Names of loam_attn, by the module that each comes from; those of C have none."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    public, origin = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loam_attn."):
            origin.update({name.asname or name.name: node.module for name in node.names})
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            public = ast.literal_eval(node.value)
    groups = {}
    for name in public:
        groups.setdefault(origin.get(name, "loam_attn"), []).append(name)
    return groups


def directive(kind, name, *options):
    return "\n".join(
        [f"```{{eval-rst}}\n.. {kind}:: {name}", *(f"   :{option}:" for option in options), "```\n"]
    )


def described(kind, name, text):
    """What no docstring says: of C, or a constant."""
    return f"```{{eval-rst}}\n.. py:{kind}:: {name}\n\n   {text}\n```\n"


def documented(name, is_tuple=False):
    if not name.rpartition(".")[2][0].isupper():
        return directive("autofunction", name)
    return directive("autoclass", name, *([] if is_tuple else ["members"]))


def source_of(module):
    return (PACKAGE / (module.partition(".")[2].replace(".", "/") + ".py")).read_text()


def python_reference():
    out = [directive("automodule", "loam_attn", "no-index")]
    groups = exported()
    first = ["loam_attn.local", "loam_attn.recurrent"]
    for module in [*first, *(m for m in groups if m not in first)]:
        if module == "loam_attn._core":
            continue
        out.append(f"## {first_sentence(PACKAGE / (module.partition('.')[2] + '.py'))}\n")
        text = source_of(module)
        # By their place in the module, softmax first; the fields of a tuple are in its signature.
        for name in sorted(
            groups[module], key=lambda name: re.search(rf"^((def|class) )?{name}\b|\Z", text, re.M).start()
        ):
            if name.isupper():
                out.append(described("data", f"loam_attn.{name}", re.search(f"#: (.*)\n{name}", text)[1]))
            else:
                out.append(documented(f"loam_attn.{name}", f"class {name}(NamedTuple)" in text))
    out.append("## Threads\n")
    for name, text in threads().items():
        out.append(described("function", f"loam_attn.{name}", text))
    done = {module.rpartition(".")[2] for module in groups}
    others = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    for path in sorted(others):
        if path.stem.startswith("_") or path.stem in done:
            continue
        source = path if path.is_file() else path / "__init__.py"
        out.append(f"## `loam_attn.{path.stem}`: {first_sentence(source)}\n")
        shown = ["members", "imported-members"] if "__all__" in source.read_text() else ["members"]
        out.append(directive("automodule", f"loam_attn.{path.stem}", *shown))
    return "\n".join(out)


def threads():
    return {
        "set_num_threads(n)": "Threads of each call from now on.",
        "get_num_threads()": "Threads of each call.",
    }


# ------------------------------------------------------------------ the links


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value)
            if (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.links.append(value or "")


def broken_links(out):
    pages = {}
    for path in out.rglob("*.html"):
        pages[path] = page = Page()
        page.feed(path.read_text())
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            there = (
                pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(url.path)))
                if url.path
                else path
            )
            if not there.exists():
                yield f"{path.relative_to(out)}: no file {link}"
            elif (
                url.fragment
                and there in pages
                and urllib.parse.unquote(url.fragment) not in pages[there].anchors
            ):
                yield f"{path.relative_to(out)}: no anchor {link}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    source = args.work / "source"
    assemble(source)
    from sphinx.cmd.build import main as sphinx

    shutil.rmtree(args.out, ignore_errors=True)
    doctrees = str(args.work / "doctrees")
    if sphinx(["-q", "-W", "--keep-going", "-E", "-d", doctrees, str(source), str(args.out)]):
        return 1
    shutil.rmtree(args.out / ".doctrees", ignore_errors=True)
    broken = sorted(set(broken_links(args.out)))
    print("\n".join(broken) or f"the site is {args.out / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
