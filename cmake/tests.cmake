# SPDX-License-Identifier: MIT
# What the ThreadSanitizer build makes.
add_custom_target(tests_threads)

# loam_add_test(NAME SOURCES file... [LIBRARIES target...] [LABELS label...] [ARGUMENTS arg...] [TIMEOUT s]
#               [ALLOCATIONS_FAIL])
#
# A cmocka program test_NAME and the ctest NAME that runs it. Labels: `fast` goes into every sanitizer build,
# `threads` into the ThreadSanitizer build, `slow` only into the plain one. Without labels: fast. Tests take
# the shared library; those whose allocations fail by tests/support/alloc_fail.c take the static one, which
# the linker can wrap.
function(loam_add_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "ALLOCATIONS_FAIL" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGUMENTS")
    if(NOT arg_LABELS)
        set(arg_LABELS fast)
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    set(library loam_shared)
    if(arg_ALLOCATIONS_FAIL)
        set(library loam_static)
        list(APPEND arg_SOURCES ${PROJECT_SOURCE_DIR}/tests/support/alloc_fail.c)
    endif()
    add_executable(test_${name} ${arg_SOURCES})
    target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(test_${name} PRIVATE ${arg_LIBRARIES} ${library} deps::cmocka m)
    if(arg_ALLOCATIONS_FAIL)
        target_link_options(test_${name} PRIVATE
            LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc)
    endif()
    if("threads" IN_LIST arg_LABELS)
        add_dependencies(tests_threads test_${name})
    endif()
    add_test(NAME ${name} COMMAND test_${name} ${arg_ARGUMENTS} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
