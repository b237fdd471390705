# SPDX-License-Identifier: MIT
# What the tree links: OpenMP in the library, the rest in the program and the tests. Debian's names of the
# packages stand in tools/install-deps.sh.
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET GLOBAL jansson)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET GLOBAL openblas)
pkg_check_modules(lapacke REQUIRED IMPORTED_TARGET GLOBAL lapacke)
if(LOAM_TESTS)
    pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET GLOBAL cmocka)
endif()

function(loam_find_plain name header library)
    find_path(${name}_INCLUDE_DIR ${header} REQUIRED)
    add_library(deps_${name} INTERFACE)
    # SYSTEM: their headers need not pass our warnings.
    target_include_directories(deps_${name} SYSTEM INTERFACE ${${name}_INCLUDE_DIR})
    if(library)
        find_library(${name}_LIBRARY ${library} REQUIRED)
        target_link_libraries(deps_${name} INTERFACE ${${name}_LIBRARY})
    endif()
    add_library(deps::${name} ALIAS deps_${name})
endfunction()

loam_find_plain(csv csv.h csv)
loam_find_plain(random123 Random123/philox.h "")
add_library(deps::jansson ALIAS PkgConfig::jansson)
add_library(deps::openblas ALIAS PkgConfig::openblas)
add_library(deps::lapacke ALIAS PkgConfig::lapacke)
if(LOAM_TESTS)
    add_library(deps::cmocka ALIAS PkgConfig::cmocka)
endif()
