# SPDX-License-Identifier: BSD-3-Clause
#
# Toolchain: the machine's own gcc with musl as the C library (Debian's musl-tools).

set(CMAKE_C_COMPILER musl-gcc)

# musl-gcc does not look into /usr/include, which has glibc's headers. Those of the kernel are there
# too: links to them are looked at last.
set(kernel_headers "${CMAKE_BINARY_DIR}/kernel-headers")
file(MAKE_DIRECTORY "${kernel_headers}")
foreach(folder linux asm asm-generic)
    file(GLOB found "/usr/include/${folder}" "/usr/include/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/${folder}")
    if(found)
        list(GET found 0 found)
        file(CREATE_LINK "${found}" "${kernel_headers}/${folder}" SYMBOLIC)
    endif()
endforeach()
set(CMAKE_C_FLAGS_INIT "-idirafter ${kernel_headers}")
