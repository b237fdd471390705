#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""house.py [TREE]: the rules of CONTRIBUTING.md that neither compiler nor clang-format checks.

No line beyond 110 columns. No function or macro beyond 60 lines, no file beyond 800. No function, and no
macro with arguments, that nothing uses. No circle of files that include each other, or whose functions call
each other. """
import bisect
import collections
import functools
import os
import re
import sys

COLUMNS, FUNCTION_LINES, FILE_LINES = 110, 60, 800
ROOMS = ['bench', 'cli', 'cmake', 'corpus', 'distill', 'dof', 'examples', 'include', 'io', 'lm', 'python',
         'random', 'regress', 'src', 'tests', 'text', 'tools', 'train']
ENTRIES = ('main', 'PyInit__core')
UNITS = ('.c', '.cu')
HEADERS = ('.h', '.inc', '.cuh')
SOURCES = UNITS + HEADERS + ('.def',)
SCRIPTS = ('.cmake', 'CMakeLists.txt', '.sh', '.py')

NAME = re.compile(r'[A-Za-z_]\w*')
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
DIRECTIVE = re.compile(r'^[ \t]*#(?:\\\n|[^\n])*', re.M)
MACRO = re.compile(r'[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?')
PASTE = re.compile(r'\w+(?:[\s\\]*##[\s\\]*\w+)+')
TOKEN = re.compile(r'\w+|[^\w\s]')
SCOPE = re.compile(r'\b(extern\s*""|namespace(\s+\w+)?)\s*$')
ATTRIBUTE = re.compile(r'\b(?:__attribute__|__launch_bounds__|alignas)\s*\(\)')
LOCAL = re.compile(r'\b(static|template|LOAM_INLINE)\b')

Function = collections.namedtuple('Function', 'name first last local pasted')
# `pastes`: of each name that it pastes, the parts, None for an argument. `words`: those of its body.
Macro = collections.namedtuple('Macro', 'name pastes words')


def blanked(match):
    """As many lines, with nothing on them; a text stays a text."""
    return '""' if match.group()[0] in '"\'' else ' ' + '\n' * match.group().count('\n')


def without_nested(text, opening, closing):
    """The text but for what is between these brackets."""
    out, depth = [], 0
    for sign in text:
        depth -= sign == closing
        if depth == 0:
            out.append(sign)
        depth += sign == opening
    return ''.join(out)


def declared(head):
    """The function that `head` declares, if any, and whether a macro makes its name: f of `int ISA(f)(x)`."""
    if 'template' in head:
        head = without_nested(head, '<', '>')
    flat = ATTRIBUTE.sub('', without_nested(head, '(', ')'))
    if '=' in flat or re.match(r'\s*typedef\b', flat):
        return None, False
    pasted = re.search(r'(\w+)\s*\(\)\s*\(\)\s*$', flat)
    inner = pasted and re.search(r'\b' + pasted[1] + r'\s*\((?:\w+\()*(\w+)', head)
    plain = re.search(r'[\w>][\s*&]+(\w+)\s*\(\)\s*$', flat)
    return (inner[1], True) if inner else (plain and plain[1], False)


def arguments(text):
    """Of each macro or function called, the arguments that are a word: (called, word)."""
    called, tokens = [], ['', *TOKEN.findall(text), '']
    for before, token, after in zip(tokens, tokens[1:], tokens[2:]):
        if token == '(':
            called.append(before)
        elif token == ')' and called:
            called.pop()
        elif called and before in '(,' and after in '),' and NAME.fullmatch(token):
            yield called[-1], token


class Source:
    """A file of C or CUDA: which functions it defines, and which names it has other than to declare them."""

    def __init__(self, path, text):
        self.path = path
        self.lines = text.count('\n')
        self.includes = ['include/loam.h' if name == 'loam.h' else name for name in INCLUDE.findall(text)]
        self.functions = []
        self.declared = set()
        self.macros = []
        self.uses = collections.Counter()
        self.arguments = set()
        code = NOISE.sub(blanked, text)
        self.starts = [match.start() for match in re.finditer('^', code, re.M)]
        for match in DIRECTIVE.finditer(code):
            self.read_directive(match)
        self.read_code(DIRECTIVE.sub(lambda match: re.sub(r'[^\n]', ' ', match.group()), code))

    def line(self, offset):
        return bisect.bisect_right(self.starts, offset)

    def use(self, text, declaration=None, parameters=()):
        self.uses.update(name for name in NAME.findall(text) if name != declaration)
        for called, word in arguments(text):
            if word != declaration and word not in parameters:
                # What a parameter stands for may paste.
                self.arguments.add((None if called in parameters else called, word))

    def read_directive(self, match):
        macro = MACRO.match(match.group())
        if not macro:
            return self.use(match.group())
        parameters = {*NAME.findall(macro[2] or ''), '__VA_ARGS__'}
        body = match.group()[macro.end():]
        self.use(body, macro[1], parameters)
        pastes = {tuple(None if part in parameters else part for part in re.findall(r'\w+', paste))
                  for paste in PASTE.findall(body)}
        self.macros.append(Macro(macro[1], pastes, set(NAME.findall(body))))
        if macro[2]:
            lines = self.line(match.start()), self.line(match.end())
            self.functions.append(Function(macro[1], *lines, local=True, pasted=False))

    def read_code(self, code):
        """Statement by statement outside of all braces: what ends with ; or is a function."""
        depth, begin, body = 0, 0, 0
        for match in re.finditer(r'[{};]', code):
            sign, at = match.group(), match.start()
            if sign == '{' and depth == 0:
                body = at
                if SCOPE.search(code[begin:at]):
                    begin = at + 1
                    continue
            depth += (sign == '{') - (sign == '}' and depth > 0)
            if depth > 0 or sign == '{':
                continue
            head = code[begin:body if sign == '}' else at]
            name, pasted = declared(head)
            if sign == '}' and not name:
                continue
            self.use(head, name)
            if name:
                self.declared.add(name)
            if sign == '}':
                # A pasted name within is another function's, f of f_avx2.
                self.use(code[body:at], None if pasted else name)
                lines = self.line(begin + len(head) - len(head.lstrip())), self.line(at)
                self.functions.append(Function(name, *lines, LOCAL.search(head) is not None, pasted))
            begin = at + 1
        self.use(code[begin:])


def files_of(tree):
    found = [name for name in os.listdir(tree) if os.path.isfile(os.path.join(tree, name))]
    for room in ROOMS:
        for folder, _, names in os.walk(os.path.join(tree, room)):
            found += [os.path.relpath(os.path.join(folder, name), tree) for name in names]
    return sorted(path for path in found if path.endswith(SOURCES + SCRIPTS))


def long_lines(texts):
    for path, text in texts.items():
        for number, line in enumerate(text.split('\n'), 1):
            if len(line) > COLUMNS:
                yield f'{path}:{number}: {len(line)} columns, at most {COLUMNS}'


def long_functions(sources):
    for source in sources:
        if source.lines > FILE_LINES:
            yield f'{source.path}: {source.lines} lines, at most {FILE_LINES}'
        for function in source.functions:
            n = function.last - function.first + 1
            if n > FUNCTION_LINES:
                at = f'{source.path}:{function.first}'
                yield f'{at}: {function.name} has {n} lines, at most {FUNCTION_LINES}'


def words_pasted(sources):
    """Of each paste, the words given to macros that lead to it: that name or paste a macro that does."""
    macros = [macro for source in sources for macro in source.macros]
    given = set().union(*(source.arguments for source in sources))
    passed = {word for _, word in given}
    words = {}
    for paste in set().union(*(macro.pastes for macro in macros)):
        leading, before = {macro.name for macro in macros if paste in macro.pastes}, 0
        while len(leading) > before:
            before = len(leading)
            leading |= {macro.name for macro in macros if macro.words & leading or
                        any(re.fullmatch(''.join(part or r'\w+' for part in other), name)
                            for other in macro.pastes for name in leading)}
        # A parameter that is called may be any macro that is passed.
        called = leading | {None} if leading & passed else leading
        words[paste] = {word for caller, word in given if caller in called}
    return words


def maker(sources):
    """The test whether macros make a name: by pasting to words that they are given, or to names so made."""
    words = words_pasted(sources)

    @functools.cache
    def made(name):
        return any(fits(paste, name, words[paste]) for paste in words)

    def fits(parts, name, given):
        if not parts:
            return not name
        if parts[0]:
            return name.startswith(parts[0]) and fits(parts[1:], name[len(parts[0]):], given)
        most = len(name) - len(parts[1:])  # the parts after it have a letter each
        return any((name[:n] in given or made(name[:n])) and fits(parts[1:], name[n:], given)
                   for n in range(1, most + 1))

    return made


def uncalled(sources):
    """ISA(f) of a definition may be used as f_avx2; the linker makes __wrap_calloc of calloc."""
    uses = collections.Counter()
    for source in sources:
        uses.update(source.uses)
    stems = {name.rsplit('_', 1)[0] for name in uses}
    made = maker(sources)
    for source in sources:
        if source.path.startswith('include/'):
            continue
        for function in source.functions:
            name = function.name
            used = uses[name] or uses[name.removeprefix('__wrap_')] or made(name)
            if name not in ENTRIES and not used and not (function.pasted and name in stems):
                yield f'{source.path}:{function.first}: nothing uses {name}'


def circles(arrows, word):
    """Tarjan's strongly connected components of more than one file."""
    index, low, stack = {}, {}, []

    def visit(path):
        index[path] = low[path] = len(index)
        stack.append(path)
        for to in arrows[path]:
            if to not in index:
                yield from visit(to)
            if to in stack:
                low[path] = min(low[path], low[to])
        if low[path] == index[path]:
            circle = stack[stack.index(path):]
            del stack[stack.index(path):]
            if len(circle) > 1:
                yield f'{min(circle)}: {word} in a circle: {" ".join(sorted(circle))}'

    for path in sorted(arrows):
        if path not in index:
            yield from visit(path)


def arrows_of_includes(sources):
    return {path: [to for to in source.includes if to in sources] for path, source in sources.items()}


def arrows_of_calls(sources):
    """From each file to those whose functions it uses and knows from what it includes."""
    includes = arrows_of_includes(sources)
    places = collections.defaultdict(set)
    for path, source in sources.items():
        for function in source.functions:
            if not (function.local and path.endswith(UNITS)):
                places[function.name].add(path)
    arrows = {}
    for path, source in sources.items():
        known, pending = set(), [path]
        while pending:
            header = pending.pop()
            if header not in known:
                known.add(header)
                pending += includes[header]
        names = set().union(*(sources[header].declared for header in known - {path}))
        own = {function.name for function in source.functions}
        called = [places[name] for name in source.uses if name in names - own and len(places[name]) == 1]
        arrows[path] = sorted(set().union(*called) - {path})
    return arrows


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..')
    texts = {path: open(os.path.join(tree, path), encoding='utf-8').read() for path in files_of(tree)}
    sources = {path: Source(path, text) for path, text in texts.items() if path.endswith(SOURCES)}
    broken = [*long_lines(texts), *long_functions(sources.values()), *uncalled(sources.values()),
              *circles(arrows_of_includes(sources), 'include'), *circles(arrows_of_calls(sources), 'call')]
    print('\n'.join(broken), end='\n' if broken else '')
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
