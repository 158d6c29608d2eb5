# SPDX-License-Identifier: BSD-3-Clause
#
# Toolchain: aarch64, with Debian's cross compiler. Libraries lie in a folder that `scripts/deps --arm64`
# fills, BMI_ARM64_LIBRARIES. qemu-user runs the tests.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

set(BMI_ARM64_LIBRARIES "${CMAKE_SOURCE_DIR}/build/arm64" CACHE PATH "libraries for aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES BMI_ARM64_LIBRARIES)
if(NOT EXISTS "${BMI_ARM64_LIBRARIES}/complete")
    message(FATAL_ERROR "no libraries for aarch64 yet. To fetch them: scripts/deps --arm64 ${BMI_ARM64_LIBRARIES}")
endif()
set(CMAKE_SYSROOT "${BMI_ARM64_LIBRARIES}")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
    "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${CMAKE_SYSROOT}")
