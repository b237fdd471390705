# SPDX-License-Identifier: MIT
# Compiler flags of everything in the tree. -ffast-math is never among them: masks are -inf.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, or Debug (asserts, -O1)" FORCE)
endif()
# Lines for the sanitizers; where each variable is takes gcc up to as long again as the code.
set(CMAKE_C_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")

# Options of C files. The CUDA compiler takes its own (cuda_options below).
function(loam_c_options)
    foreach(option ${ARGN})
        add_compile_options($<$<COMPILE_LANGUAGE:C>:${option}>)
    endforeach()
endfunction()

loam_c_options(
    -fno-math-errno
    -Wall -Wextra -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wcast-qual)
if(CMAKE_C_COMPILER_ID MATCHES Clang)
    # `omp simd` is a wish, which a build at -O1 may leave unfulfilled.
    loam_c_options(-Wno-pass-failed)
endif()
if(LOAM_WERROR)
    loam_c_options(-Werror)
endif()

if(LOAM_SANITIZE)
    loam_c_options(-fsanitize=${LOAM_SANITIZE} -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${LOAM_SANITIZE})
endif()
if(LOAM_COVERAGE)
    loam_c_options(--coverage -fprofile-update=atomic)
    add_link_options(--coverage)
endif()
if(LOAM_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
        message(FATAL_ERROR "LOAM_FUZZ needs clang (libFuzzer); the compiler is ${CMAKE_C_COMPILER_ID}")
    endif()
    # The targets in tests/fuzz add -fsanitize=fuzzer when they link.
    loam_c_options(-fsanitize=fuzzer-no-link)
endif()

# Device code is C with templates; host code neither throws nor needs the C++ library, so that a C compiler
# links it. ptxas' report of each kernel goes to a file beside the object (tools/ptxas-log.sh).
set(cuda_options --expt-relaxed-constexpr -Xptxas=-v -Xfatbin=-compress-all
    -Xcompiler=-fno-math-errno,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
    -Xcompiler=-Wall,-Wextra,-Wshadow,-Wvla,-Wpointer-arith)
if(LOAM_WERROR)
    list(APPEND cuda_options --Werror=all-warnings -Xcompiler=-Werror)
endif()
