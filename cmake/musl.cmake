# SPDX-License-Identifier: BSD-3-Clause
#
# Toolchain: the machine's own gcc with musl as the C library (Debian's musl-tools). The libraries
# that libbmi cannot do without are built for musl first, once, beside the build folder.

set(CMAKE_C_COMPILER musl-gcc)

if(NOT DEFINED ENV{BMI_MUSL_LIBRARIES}) # set again in the projects that CMake's own checks are
    get_filename_component(libraries "${CMAKE_BINARY_DIR}/../musl-libraries" ABSOLUTE)
    execute_process(COMMAND "${CMAKE_CURRENT_LIST_DIR}/../scripts/musl-libraries" "${libraries}"
                    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    set(ENV{BMI_MUSL_LIBRARIES} "${libraries}")
endif()
set(ENV{PKG_CONFIG_LIBDIR} "$ENV{BMI_MUSL_LIBRARIES}/lib/pkgconfig")
set(CMAKE_C_FLAGS_INIT "-idirafter $ENV{BMI_MUSL_LIBRARIES}/kernel-headers")
