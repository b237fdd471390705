#!/bin/sh
# SPDX-License-Identifier: MIT
# house_broken.sh HOUSE: tools/house.py must find each of these breaches of the rules, and none where there is
# none.
set -eu
house=$1
tree=$(mktemp -d "${TMPDIR:-/tmp}/loam-house.XXXXXX")
trap 'rm -rf "$tree"' EXIT

# expect FILES: the check complains of these, once each, and empties the tree; of nothing where there are
# none.
expect()
{
    status=0
    said=$("$house" "$tree") || status=$?
    found=$(echo "$said" | sed 's/:.*//' | tr '\n' ' ' | sed 's/ $//')
    if [ "$found" != "$1" ] || [ "$status" != "$([ -z "$1" ] && echo 0 || echo 1)" ]; then
        echo "status $status, expected complaints of '$1'; it said:"
        echo "$said"
        exit 1
    fi
    rm -rf "${tree:?}"/*
}
# file PATH: from standard input.
file()
{
    mkdir -p "$tree/${1%/*}"
    cat >"$tree/$1"
}
# statements COUNT: so many lines.
statements() { awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print "    x++;" }'; }
columns() { awk -v n="$1" 'BEGIN { printf "%s", "//"; for (i = 2; i < n; i++) printf "-"; print "" }'; }

columns 110 | file src/a.c
expect ''
columns 111 | file src/a.cuh
columns 111 | sed 's,//,##,' | file tools/a.sh
columns 111 | sed 's,//,##,' | file cmake/CMakeLists.txt
expect 'cmake/CMakeLists.txt src/a.cuh tools/a.sh'

# From the first line of its head to its brace; device code, templates and macros likewise.
(echo 'int main(void)' && echo '{' && statements 57 && echo '}') | file src/a.c
expect ''
(printf 'int main(int argc,\n char **argv)\n{\n' && statements 57 && echo '}') | file src/a.c
expect src/a.c
(printf 'struct s { int x; };\ntemplate <int N>\n__global__ void __launch_bounds__(N) kernel(int x)\n{\n' &&
    statements 57 &&
    printf '}\nvoid run() { kernel<1><<<1, 1>>>(1); }\nstatic int at = run();\n') | file src/a.cu
expect src/a.cu
(printf '#define MANY(x) \\\n' && statements 60 | sed 's/$/ \\/' && printf '\nint x = MANY(1);\n') |
    file src/a.c
expect src/a.c
statements 801 | file src/a.inc
expect src/a.inc

# Declaring is not using, nor is calling oneself; a table and a macro that pastes are uses.
printf 'int f(int x);\n' | file src/a.h
printf '#include "src/a.h"\nint f(int x) { return x ? f(x - 1) : 0; }\n#define TWICE(x) (2 * (x))\n' |
    file src/a.c
expect 'src/a.c src/a.c'
printf 'int f(int x) { return x; } /* f(1) */\nconst char *g = "f";\n' | file src/a.c
expect src/a.c
printf 'void ISA(f)(void) {}\nint JOIN(ISA(f), work)(void) { return 1; }\nint g_work(void) { return 1; }\n' |
    file src/a.c
printf '#define ROW(name) { name, name##_work },\n' | file src/b.h
printf 'ROW(f_avx2)\nROW(g)\n' | file src/c.def
expect ''
printf 'static int f(void) { return 1; }\nint (*const g)(void) = f;\n' | file src/a.c
expect ''

# Macros that paste, one through the other, to the words of a table: KERNEL(CPU, f) uses DECLARE_CPU and
# f_cpu_work. Not DECLARE_GPU and f_gpu_work, nor g_work, whose stem is called but in no table; nor join_g.
table()
{
    file src/b.h <<'CODE'
#define DECLARE(name) int name(void), name##_work(void);
#define DECLARE_CPU(name, ...) DECLARE(name ## _cpu)
#define KERNEL(machine, ...) DECLARE_##machine(__VA_ARGS__)
#define JOIN(a, b) a##_##b
#define EACH(X) X(left) X(right)
#define SIDE(name) int turn_##name(void);
EACH(SIDE) int JOIN(join, h)(void);
CODE
    echo 'KERNEL(CPU, f)' | file src/c.def
    file src/a.c <<'CODE'
int f_cpu(void) { return 1; }
int f_cpu_work(void) { return g(1); }
static int g(int x) { return x; }
int turn_left(void) { return JOIN(join, h)(); }
int join_h(void) { return 1; }
CODE
}
table
expect ''
for unused in f_gpu_work g_work g_cpu_work join_g turn_up left_cpu; do
    table
    echo "int $unused(void) { return 1; }" >>"$tree/src/a.c"
    expect src/a.c
done
table
echo '#define DECLARE_GPU(name) DECLARE(name##_cpu)' >>"$tree/src/b.h"
expect src/b.h
table
echo 'KERNEL(CPU, g)' >>"$tree/src/c.def"
echo 'int g_cpu_work(void) { return 1; }' >>"$tree/src/a.c"
expect ''

printf '#include "src/b.h"\n' | file src/a.h
printf '#include "src/a.h"\n' | file src/b.h
printf 'int f(void);\n' | file src/a.c
printf 'int g(void);\n' | file src/b.c
expect src/a.h
printf '#include "src/ab.h"\nint f(void) { return g(); }\n' | file src/a.c
printf '#include "src/ab.h"\nint g(void) { return 1; }\n' | file src/b.c
printf 'int f(void);\nint g(void);\nstatic int x = f();\n' | file src/ab.h
expect ''
printf '#include "src/ab.h"\nint f(void) { return g(); }\n' | file src/a.c
printf '#include "src/ab.h"\nint g(void) { return f(); }\n' | file src/b.c
printf 'int f(void);\nint g(void);\n' | file src/ab.h
expect src/a.c
# Of a name that is a file's own nothing follows.
printf '#include "src/ab.h"\nint f(void) { return g(); }\n' | file src/a.c
printf '#include "src/ab.h"\nstatic int f(void) { return 1; }\nint g(void) { return f(); }\n' | file src/b.c
printf 'int g(void);\nstatic int x = f();\n' | file src/ab.h
expect ''
