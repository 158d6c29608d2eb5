# SPDX-License-Identifier: BSD-3-Clause
#
# Libraries, headers, bmi.pc, and the CMake package. A program needs libbmi only: what libbmi itself
# needs is recorded in libbmi.so, and told for libbmi.a in Libs.private and the CMake package.

include(CMakePackageConfigHelpers)

install(TARGETS bmi EXPORT bmi-shared
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS bmi_static EXPORT bmi-static ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES include/bmi.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY include/bmi DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h"
    PATTERN method.h EXCLUDE PATTERN lock.h EXCLUDE) # for methods, which are part of the library

# What libbmi.a needs, told apart: packages with a pkg-config file, and plain libraries.
get_property(libraries GLOBAL PROPERTY bmi_libraries)
list(REMOVE_DUPLICATES libraries)
set(BMI_PC_LIBS "${CMAKE_THREAD_LIBS_INIT}")
set(BMI_STATIC_PACKAGES "")
foreach(name IN LISTS libraries)
    get_property(modules GLOBAL PROPERTY "bmi_modules_${name}")
    if(modules)
        string(REPLACE ";" " " modules "${modules}")
        # By name rather than by Requires.private: their own private libraries (hwloc's udev) are
        # no need of ours, since the packages themselves are shared libraries.
        foreach(library IN LISTS bmi_${name}_LIBRARIES)
            string(APPEND BMI_PC_LIBS " -l${library}")
        endforeach()
        string(APPEND BMI_STATIC_PACKAGES
            "    pkg_check_modules(bmi_${name} QUIET IMPORTED_TARGET ${modules})\n"
            "    if(NOT bmi_${name}_FOUND)\n        set(bmi_static_FOUND OFF)\n    endif()\n")
    else()
        string(APPEND BMI_PC_LIBS " -l${name}")
    endif()
endforeach()

# bmi.pc finds the prefix from where it lies, so that it can be moved; folders that were given as
# absolute ones are where they are.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(BMI_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
    file(RELATIVE_PATH up "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
    set(BMI_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(folder LIBDIR INCLUDEDIR)
    set(BMI_PC_${folder} "${CMAKE_INSTALL_${folder}}")
    if(NOT IS_ABSOLUTE "${BMI_PC_${folder}}")
        string(PREPEND BMI_PC_${folder} "\${prefix}/")
    endif()
endforeach()
configure_file(cmake/bmi.pc.in "${PROJECT_BINARY_DIR}/bmi.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/bmi.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/bmi")
configure_package_config_file(cmake/bmi-config.cmake.in "${PROJECT_BINARY_DIR}/bmi-config.cmake"
    INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/bmi-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/bmi-config.cmake"
    "${PROJECT_BINARY_DIR}/bmi-config-version.cmake" DESTINATION "${package_folder}")
install(EXPORT bmi-shared NAMESPACE bmi:: DESTINATION "${package_folder}")
install(EXPORT bmi-static NAMESPACE bmi:: DESTINATION "${package_folder}")
