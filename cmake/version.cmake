# SPDX-License-Identifier: MIT
# LOAM_VERSION out of include/loam.h, which is the only place where the number stands.
set(header ${CMAKE_CURRENT_LIST_DIR}/../include/loam.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
file(READ ${header} text)
foreach(part MAJOR MINOR PATCH)
    if(NOT text MATCHES "#define LOAM_VERSION_${part} ([0-9]+)")
        message(FATAL_ERROR "${header} does not define LOAM_VERSION_${part}")
    endif()
    set(LOAM_VERSION_${part} ${CMAKE_MATCH_1})
endforeach()
set(LOAM_VERSION ${LOAM_VERSION_MAJOR}.${LOAM_VERSION_MINOR}.${LOAM_VERSION_PATCH})
unset(text)
unset(header)
