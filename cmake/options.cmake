# SPDX-License-Identifier: BSD-3-Clause
#
# Options and packages. bmi_required names what the library cannot be built without. Of the optional
# packages each BMI_WITH_X is AUTO unless set: on if its package is found,
# also one that is installed after the first configure. It is refused if switched on without it, and
# reaches C as a definition: `#if BMI_WITH_X`, always 0 or 1.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
include(CheckIncludeFile)

set(BMI_PACKAGES "")

# bmi__auto(NAME HELP FOUND): option NAME; AUTO is what was found.
macro(bmi__auto name help found)
    set("${name}" AUTO CACHE STRING "${help}")
    set_property(CACHE "${name}" PROPERTY STRINGS AUTO ON OFF)
    if("${${name}}" STREQUAL AUTO)
        set("${name}" "${found}")
    endif()
endmacro()

# bmi_required(NAME pkg-config-modules...): a library that folders link as `name` in lower case.
function(bmi_required name)
    string(TOLOWER "${name}" library)
    pkg_check_modules("bmi_${library}" REQUIRED IMPORTED_TARGET GLOBAL ${ARGN})
    set_property(GLOBAL PROPERTY "bmi_modules_${library}" "${ARGN}")
endfunction()

# bmi_package(NAME pkg-config-modules... HELP text): option BMI_WITH_NAME and, where on, a library
# that folders link as `name` in lower case.
function(bmi_package name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "HELP" "")
    string(TOLOWER "${name}" library)
    set(found OFF)
    pkg_check_modules("bmi_${library}" QUIET IMPORTED_TARGET GLOBAL ${arg_UNPARSED_ARGUMENTS})
    if(bmi_${library}_FOUND)
        set(found ON)
    endif()
    bmi__auto("BMI_WITH_${name}" "${arg_HELP}" "${found}")
    set("BMI_WITH_${name}" "${BMI_WITH_${name}}" PARENT_SCOPE)
    if(BMI_WITH_${name} AND NOT found)
        message(FATAL_ERROR "BMI_WITH_${name} is on, but ${arg_UNPARSED_ARGUMENTS} was not found")
    endif()
    set_property(GLOBAL PROPERTY "bmi_modules_${library}" "${arg_UNPARSED_ARGUMENTS}")
    list(APPEND BMI_PACKAGES "${name}")
    set(BMI_PACKAGES "${BMI_PACKAGES}" PARENT_SCOPE)
endfunction()

bmi_required(CRYPTO libcrypto>=3.0)
bmi_required(HWLOC hwloc>=2.0)
bmi_required(URCU liburcu-bp>=0.13)
bmi_package(SSL libssl>=3.0 HELP "the tls method, on OpenSSL")
bmi_package(FABRIC libfabric HELP "the ib method, on libfabric")
bmi_package(LMDB lmdb HELP "key/values of trove-stub's dir backend, in LMDB")
bmi_package(URING liburing HELP "asynchronous file I/O, and an engine of the tcp method, by io_uring")
bmi_package(MICROHTTPD libmicrohttpd>=0.9.71 HELP "bmi-metrics, by libmicrohttpd")
bmi_package(CUNIT cunit HELP "unit tests, with CUnit")

find_package(MPI QUIET COMPONENTS C)
bmi__auto(BMI_WITH_MPI "MPI as a reference in the benchmarks" "${MPI_C_FOUND}")
if(BMI_WITH_MPI AND NOT MPI_C_FOUND)
    message(FATAL_ERROR "BMI_WITH_MPI is on, but no MPI compiler was found")
endif()
list(APPEND BMI_PACKAGES MPI)

if(NOT BMI_SDT_H) # it may have been installed since the last time
    unset(BMI_SDT_H CACHE)
endif()
check_include_file(sys/sdt.h BMI_SDT_H)
set(found OFF)
if(BMI_SDT_H)
    set(found ON)
endif()
bmi__auto(BMI_WITH_PROBES "static probes, for bpftrace and perf" "${found}")
if(BMI_WITH_PROBES AND NOT BMI_SDT_H)
    message(FATAL_ERROR "BMI_WITH_PROBES is on, but sys/sdt.h was not found")
endif()
list(APPEND BMI_PACKAGES PROBES)

set(tests OFF) # of a project that has this one as a subfolder
if(PROJECT_IS_TOP_LEVEL)
    set(tests "${BMI_WITH_CUNIT}")
endif()
set(BMI_TEST_CUNIT package CACHE STRING "package, or standin: that of tests/cunit, where there is no package")
set_property(CACHE BMI_TEST_CUNIT PROPERTY STRINGS package standin)
bmi__auto(BMI_WITH_TESTS "build the tests (they need CUnit)" "${tests}")
if(BMI_WITH_TESTS AND NOT BMI_WITH_CUNIT AND NOT BMI_TEST_CUNIT STREQUAL standin)
    message(FATAL_ERROR "BMI_WITH_TESTS is on, but BMI_WITH_CUNIT is off and BMI_TEST_CUNIT is not \"standin\"")
endif()
option(BMI_WITH_TOOLS "build bmi-info and bmi-ping" ON)
option(BMI_WITH_EXAMPLES "build the examples, bmi-stripefs and bmi-stripefsd among them" ON)
option(BMI_WITH_BENCH "build bmi-bench" ON)

option(BMI_WERROR "treat warnings as errors" OFF)
option(BMI_QUICK_BUILD "optimise as little as with sanitizers: half the time to build, for builds that only test" OFF)
option(BMI_COVERAGE "count executed lines" OFF)
option(BMI_FUZZER "build fuzz targets with libFuzzer (clang); else they replay their corpus" OFF)
set(BMI_SANITIZE "" CACHE STRING "sanitizers: address,undefined or thread")

set(BMI_TEST_PREFIX "" CACHE STRING "put before the name of each test")
set(BMI_TEST_LABELS "" CACHE STRING "build only tests of these labels; empty: all")
set(BMI_TEST_SELECT "" CACHE STRING "build only tests whose LABEL.NAME matches; empty: all")
set(BMI_TEST_TIMEOUT_FACTOR 1 CACHE STRING "multiplies the time-out of each test")
set(BMI_FUZZ_SECONDS 60 CACHE STRING "time for all fuzz targets together")
option(BMI_TEST_PACKAGE "test the Debian packages: a build, and a fresh root by debootstrap" OFF)
option(BMI_TEST_VALGRIND "run unit tests and those marked VALGRIND under memcheck too" OFF)

# Prints what will be built and with what.
function(bmi_summary)
    message(STATUS "libbmi ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} "
                   "${CMAKE_C_COMPILER_VERSION}")
    get_property(methods GLOBAL PROPERTY bmi_methods)
    list(TRANSFORM methods REPLACE "^bmi__method_" "")
    list(JOIN methods " " methods)
    message(STATUS "  methods:  ${methods}")
    foreach(kind with without)
        set(names "")
        foreach(name IN LISTS BMI_PACKAGES ITEMS TOOLS EXAMPLES BENCH TESTS)
            if((kind STREQUAL with AND BMI_WITH_${name})
               OR (kind STREQUAL without AND NOT BMI_WITH_${name}))
                string(TOLOWER "${name}" name)
                string(APPEND names " ${name}")
            endif()
        endforeach()
        message(STATUS "  ${kind}:${names}")
    endforeach()
    if(BMI_SANITIZE OR BMI_FUZZER OR BMI_COVERAGE)
        message(STATUS "  checks:   sanitize=${BMI_SANITIZE} fuzzer=${BMI_FUZZER} "
                       "coverage=${BMI_COVERAGE}")
    endif()
endfunction()
