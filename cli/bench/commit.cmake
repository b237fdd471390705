# SPDX-License-Identifier: MIT
# cmake -DOUT=F.c -DSOURCE=DIR -P commit.cmake: writes F.c, the commit of the tree in DIR as it is now ("+":
# what the program is made of has changed since), and touches it only where that is another.
cmake_minimum_required(VERSION 3.25)
set(commit unknown)
set(git git --no-optional-locks -C ${SOURCE})
if(EXISTS ${SOURCE}/.git)
    execute_process(COMMAND ${git} rev-parse --short=12 HEAD
                    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${git} status --porcelain -- CMakeLists.txt bench/shapes cli cmake include io src
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(head MATCHES "^[0-9a-f]+$")
        set(commit ${head})
        if(changes)
            set(commit ${head}+)
        endif()
    endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY
     CONTENT "#include \"cli/bench/generated.h\"\n\nconst char BENCH_COMMIT[] = \"${commit}\";\n")
