# SPDX-License-Identifier: MIT
# cmake -DOUT=F -DSOURCE=DIR -P bench_commit.cmake: writes F, the commit of the tree in DIR as it is now ("+": with
# changes), and touches it only where that is another.
set(commit unknown)
execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=12 --dirty=+ --exclude=*
                OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND described MATCHES "^[0-9a-f]+[+]?$")
    set(commit ${described})
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "#define BENCH_COMMIT \"@commit@\"\n")
