# SPDX-License-Identifier: BSD-3-Clause
#
# What every source file of ours is compiled with: the interface library bmi_flags.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo, or Debug" FORCE)
endif()
# RelWithDebInfo keeps assertions; Release drops them.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
if(BMI_SANITIZE OR BMI_QUICK_BUILD) # runs as fast, and is built in little more than half the time
    set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()
# A small message over tcp takes 2 % longer with -O2. Where functions happen to lie makes 5 % of what
# a task costs, and 3 of a message over gm: they begin where instructions are fetched.
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG -falign-functions=32")

add_library(bmi_flags INTERFACE)
target_compile_options(bmi_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion
    $<$<C_COMPILER_ID:Clang>:-Wthread-safety> $<$<C_COMPILER_ID:Clang>:-Werror=thread-safety>
    $<$<BOOL:${BMI_WERROR}>:-Werror>)
target_compile_definitions(bmi_flags INTERFACE _GNU_SOURCE)
foreach(name IN LISTS BMI_PACKAGES)
    target_compile_definitions(bmi_flags INTERFACE "BMI_WITH_${name}=$<BOOL:${BMI_WITH_${name}}>")
endforeach()
target_include_directories(bmi_flags INTERFACE "${PROJECT_SOURCE_DIR}/include")
target_link_libraries(bmi_flags INTERFACE Threads::Threads)

# Sanitizers and coverage have to be in every object and every link.
if(BMI_SANITIZE)
    add_compile_options("-fsanitize=${BMI_SANITIZE}" -fno-sanitize-recover=all
                        -fno-omit-frame-pointer)
    add_link_options("-fsanitize=${BMI_SANITIZE}")
    if(CMAKE_C_COMPILER_ID STREQUAL Clang AND BMI_SANITIZE MATCHES address)
        add_compile_definitions(__SANITIZE_ADDRESS__) # as gcc defines it
    endif()
endif()
if(BMI_FUZZER)
    if(NOT CMAKE_C_COMPILER_ID STREQUAL Clang)
        message(FATAL_ERROR "BMI_FUZZER needs clang (preset fuzz)")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(BMI_COVERAGE)
    add_compile_options(--coverage -fprofile-abs-path)
    add_link_options(--coverage)
endif()
