# SPDX-License-Identifier: BSD-3-Clause
#
# bmi_test(NAME x SOURCES x_test.c LABEL unit|conformance|stress|fault|fuzz|model|vm|bench|tools|package
#          [ARGS ...] [TIMEOUT seconds] [COST seconds] [INTERNAL] [LIBRARIES ...] [RUN_SERIAL]
#          [VALGRIND] [NO_VALGRIND] [ONE_THREAD] [BACKGROUND] [WRAP function ...])
#     a program and a test LABEL.x that runs it. INTERNAL: sees the headers of the whole tree and
#     links bmi_internal; else public headers and libbmi.so. CUnit is linked in both cases. Exit status
#     77 is "skipped". VALGRIND: short enough to be run under memcheck too (unit tests always
#     are, unless they say NO_VALGRIND: memcheck does not see what io_uring writes into memory, and
#     takes what a child of fork() has of its parent's threads for leaks). ONE_THREAD: the program starts no
#     thread, so it is not built with the thread sanitizer. BACKGROUND: run once more with progress in the
#     background, as LABEL.x.background. WRAP: the program stands in for these functions of the library, by
#     the linker's --wrap. COST: how long it takes, if that is more than 20 seconds: ctest starts the longest
#     ones first, so that none is left alone at the end.
# bmi_test_objects(x a.c b.c)    files that several programs share, which see the whole tree: built once,
#     for those that name x after LIBRARIES
# bmi_test(NAME x PROGRAM y LABEL ... [ARGS ...])    another test that runs y, made by a call before
# bmi_test(NAME x COMMAND ... LABEL ...)             a test that runs a command, e.g. a script
#
# LABEL fuzz: the source has LLVMFuzzerTestOneInput and no main; corpus/x/ beside it holds inputs.
# With BMI_FUZZER it is fuzzed for its share of BMI_FUZZ_SECONDS, else it is run on the corpus once.
#
# RUN_SERIAL: nothing runs beside it, as it looks at the whole machine or takes all of it. Others have
# to bear company: no test judges speed.

set(BMI_TIMEOUT_unit 180)
set(BMI_TIMEOUT_conformance 180)
set(BMI_TIMEOUT_stress 180)
set(BMI_TIMEOUT_fault 180)
set(BMI_TIMEOUT_fuzz 180)
set(BMI_TIMEOUT_model 180)
set(BMI_TIMEOUT_vm 480)
set(BMI_TIMEOUT_bench 120)
set(BMI_TIMEOUT_package 1800)
set(BMI_TIMEOUT_tools 120)
set(BMI_MEMCHECK valgrind --quiet --error-exitcode=99 --leak-check=full
    --show-leak-kinds=definite,possible --errors-for-leak-kinds=definite,possible
    --trace-children=yes --fair-sched=yes --vgdb=no "--suppressions=${PROJECT_SOURCE_DIR}/tests/valgrind.supp")

function(bmi_test)
    cmake_parse_arguments(PARSE_ARGV 0 arg "INTERNAL;RUN_SERIAL;VALGRIND;NO_VALGRIND;ONE_THREAD;BACKGROUND"
                          "NAME;LABEL;TIMEOUT;COST;PROGRAM" "SOURCES;ARGS;LIBRARIES;COMMAND;WRAP")
    if(NOT DEFINED BMI_TIMEOUT_${arg_LABEL})
        message(FATAL_ERROR "bmi_test ${arg_NAME}: no label '${arg_LABEL}'")
    endif()
    if(NOT BMI_WITH_TESTS OR (BMI_TEST_LABELS AND NOT arg_LABEL IN_LIST BMI_TEST_LABELS) OR
       (BMI_TEST_SELECT AND NOT "${arg_LABEL}.${arg_NAME}" MATCHES "${BMI_TEST_SELECT}") OR
       (arg_ONE_THREAD AND BMI_SANITIZE MATCHES thread))
        return()
    endif()
    if(arg_SOURCES)
        bmi__test_program()
        set(arg_PROGRAM "${arg_NAME}")
    endif()
    if(arg_LABEL STREQUAL fuzz AND BMI_FUZZER)
        set_property(GLOBAL APPEND PROPERTY bmi_fuzz_targets "${arg_NAME}")
        set_property(GLOBAL PROPERTY "bmi_corpus_${arg_NAME}" "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${arg_NAME}")
        return()
    endif()

    if(arg_LABEL STREQUAL fuzz)
        list(APPEND arg_ARGS "${CMAKE_CURRENT_SOURCE_DIR}/corpus/${arg_NAME}")
    endif()
    if(arg_PROGRAM)
        set(arg_COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} "$<TARGET_FILE:${arg_PROGRAM}>")
    elseif(CMAKE_CROSSCOMPILING_EMULATOR) # `env X=y program`
        bmi__emulate(arg_COMMAND ${arg_COMMAND})
        bmi__emulate(arg_ARGS ${arg_ARGS})
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT "${BMI_TIMEOUT_${arg_LABEL}}")
    endif()
    math(EXPR timeout "${arg_TIMEOUT} * ${BMI_TEST_TIMEOUT_FACTOR}")
    set(name "${BMI_TEST_PREFIX}${arg_LABEL}.${arg_NAME}")
    bmi__add_test("${name}" "${timeout}" ${arg_COMMAND} ${arg_ARGS})
    if(arg_BACKGROUND)
        bmi__add_test("${name}.background" "${timeout}" ${arg_COMMAND} ${arg_ARGS})
        set_property(TEST "${name}.background" APPEND PROPERTY ENVIRONMENT BMI_PROGRESS=background)
    endif()

    if(BMI_TEST_VALGRIND AND arg_PROGRAM AND NOT arg_NO_VALGRIND AND
       (arg_VALGRIND OR arg_LABEL STREQUAL unit))
        math(EXPR timeout "${timeout} * 5")
        bmi__add_test("valgrind.${arg_LABEL}.${arg_NAME}" "${timeout}"
                      ${BMI_MEMCHECK} ${arg_COMMAND} ${arg_ARGS})
        set_property(TEST "valgrind.${arg_LABEL}.${arg_NAME}" APPEND PROPERTY LABELS valgrind)
    endif()
endfunction()

function(bmi_test_objects name)
    add_library("${name}" OBJECT EXCLUDE_FROM_ALL ${ARGN})
    target_include_directories("${name}" PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries("${name}" PRIVATE bmi_flags bmi_cunit bmi_internal)
endfunction()

# bmi_test_keys(): makes credentials of the tls method for this host, once. BMI_TEST_KEYS is their
# folder, BMI_TLS_ENVIRONMENT the variables of a test that uses them.
set(BMI_TEST_KEYS "${PROJECT_BINARY_DIR}/test-keys")
set(BMI_TLS_ENVIRONMENT "BMI_TLS_CERTIFICATE=${BMI_TEST_KEYS}/localhost.pem"
    "BMI_TLS_KEY=${BMI_TEST_KEYS}/localhost.key" "BMI_TLS_AUTHORITIES=${BMI_TEST_KEYS}/authority.pem"
    "BMI_TEST_CLIENT=${BMI_TEST_KEYS}/client")
function(bmi_test_keys)
    cmake_host_system_information(RESULT here QUERY HOSTNAME)
    set(keys ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:bmi-keys>)
    add_custom_command(OUTPUT "${BMI_TEST_KEYS}/localhost.pem"
        COMMAND "${CMAKE_COMMAND}" -E rm -rf "${BMI_TEST_KEYS}"
        COMMAND ${keys} authority "${BMI_TEST_KEYS}"
        COMMAND ${keys} host "${BMI_TEST_KEYS}" localhost 127.0.0.1 127.0.0.2 ::1
                "${here}" null no-such-host.invalid
        COMMAND ${keys} client "${BMI_TEST_KEYS}" client
        COMMAND ${keys} psk "${BMI_TEST_KEYS}/psk" cluster
        VERBATIM COMMENT "Making keys for the tests of tls")
    add_custom_target(bmi_test_keys ALL DEPENDS "${BMI_TEST_KEYS}/localhost.pem")
endfunction()

# The words of a command, with the emulator before a program of this build.
function(bmi__emulate result)
    set(words "")
    foreach(word IN LISTS ARGN)
        if(word MATCHES "^\\$<TARGET_FILE:[^>]*>$")
            list(APPEND words ${CMAKE_CROSSCOMPILING_EMULATOR})
        endif()
        list(APPEND words "${word}")
    endforeach()
    set(${result} "${words}" PARENT_SCOPE)
endfunction()

# The program of a test; uses bmi_test's arg_*.
macro(bmi__test_program)
    add_executable("${arg_NAME}" ${arg_SOURCES})
    bmi__resolve(libraries ${arg_LIBRARIES})
    target_link_libraries("${arg_NAME}" PRIVATE bmi_flags ${libraries} bmi_cunit)
    if(arg_INTERNAL)
        target_include_directories("${arg_NAME}" PRIVATE "${PROJECT_SOURCE_DIR}")
        target_link_libraries("${arg_NAME}" PRIVATE bmi_internal)
    else()
        target_link_libraries("${arg_NAME}" PRIVATE bmi)
    endif()
    if(arg_WRAP) # link-time optimisation binds calls before the linker could turn them
        list(TRANSFORM arg_WRAP PREPEND LINKER:--wrap=)
        target_link_options("${arg_NAME}" PRIVATE -fno-lto ${arg_WRAP})
    endif()
    if(arg_LABEL STREQUAL fuzz)
        if(BMI_FUZZER)
            target_link_options("${arg_NAME}" PRIVATE -fsanitize=fuzzer)
        else()
            target_sources("${arg_NAME}" PRIVATE "${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.c")
        endif()
    endif()
endmacro()

# Registers a test with the properties of its label; uses bmi_test's arg_*. BMI_TEST_DEADLINE, in
# its environment, ends before the time-out does: a program that heeds it still says where it hangs.
macro(bmi__add_test name timeout)
    add_test(NAME "${name}" COMMAND ${ARGN})
    set_tests_properties("${name}" PROPERTIES LABELS "${arg_LABEL}" TIMEOUT "${timeout}"
        SKIP_RETURN_CODE 77)
    if(arg_COST)
        set_tests_properties("${name}" PROPERTIES COST "${arg_COST}")
    endif()
    if(arg_RUN_SERIAL)
        set_tests_properties("${name}" PROPERTIES RUN_SERIAL ON)
    endif()
    math(EXPR bmi__half "${timeout} / 2")
    math(EXPR bmi__deadline "${timeout} - 10")
    if(bmi__deadline LESS bmi__half)
        set(bmi__deadline "${bmi__half}")
    endif()
    set_property(TEST "${name}" APPEND PROPERTY ENVIRONMENT "BMI_TEST_DEADLINE=${bmi__deadline}")
    if(CMAKE_CROSSCOMPILING_EMULATOR)
        set_property(TEST "${name}" APPEND PROPERTY ENVIRONMENT BMI_TEST_EMULATED=1)
    endif()
    bmi__sanitizer_environment("${name}")
endmacro()

function(bmi__sanitizer_environment name)
    if(BMI_SANITIZE MATCHES thread)
        set(file "${PROJECT_SOURCE_DIR}/tests/tsan.supp")
        set(options "halt_on_error=1:second_deadlock_stack=1")
        if(EXISTS "${file}")
            string(APPEND options ":suppressions=${file}")
        endif()
        set_property(TEST "${name}" APPEND PROPERTY ENVIRONMENT "TSAN_OPTIONS=${options}")
    elseif(BMI_SANITIZE)
        set_property(TEST "${name}" APPEND PROPERTY ENVIRONMENT
            "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1"
            "LSAN_OPTIONS=print_suppressions=0:suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp"
            "UBSAN_OPTIONS=print_stacktrace=1")
    endif()
endfunction()

# Fuzz targets share BMI_FUZZ_SECONDS. New inputs go to the build folder, those in the tree are read.
function(bmi__fuzz_tests)
    get_property(targets GLOBAL PROPERTY bmi_fuzz_targets)
    list(LENGTH targets count)
    if(count EQUAL 0)
        return()
    endif()
    math(EXPR seconds "(${BMI_FUZZ_SECONDS} + ${count} - 1) / ${count}")
    math(EXPR timeout "${seconds} * 3 + 60")
    foreach(target IN LISTS targets)
        get_property(corpus GLOBAL PROPERTY "bmi_corpus_${target}")
        set(found "${PROJECT_BINARY_DIR}/corpus/${target}")
        file(MAKE_DIRECTORY "${found}")
        set(arg_LABEL fuzz)
        bmi__add_test("${BMI_TEST_PREFIX}fuzz.${target}" "${timeout}" "$<TARGET_FILE:${target}>"
            "-max_total_time=${seconds}" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
            "-artifact_prefix=${found}-" "${found}" "${corpus}")
    endforeach()
endfunction()
