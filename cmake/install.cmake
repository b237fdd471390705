# SPDX-License-Identifier: MIT
# make install: the header, both libraries, loam.pc, the CMake package, the program and its manual page.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/loam)

set_target_properties(loam_shared PROPERTIES EXPORT_NAME loam)
install(TARGETS loam_shared loam_static EXPORT loam_targets)
install(TARGETS loam_program)
install(EXPORT loam_targets NAMESPACE loam:: FILE loam-targets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/include/loam.h TYPE INCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/man/loam.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/loam-config.cmake.in
    ${PROJECT_BINARY_DIR}/loam-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/loam-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/loam-config.cmake ${PROJECT_BINARY_DIR}/loam-config-version.cmake
        DESTINATION ${package_dir})

list(TRANSFORM LOAM_LINK_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE private_libraries)
list(JOIN private_libraries " " LOAM_PRIVATE_LIBRARIES)
# The way up from lib/pkgconfig to the prefix; Debian's lib/x86_64-linux-gnu is one step longer.
file(RELATIVE_PATH LOAM_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" LOAM_PC_PREFIX "${LOAM_PC_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/loam.pc.in ${PROJECT_BINARY_DIR}/loam.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/loam.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
