# SPDX-License-Identifier: BSD-3-Clause
#
# The functions that the folders' CMakeLists.txt use:
#   bmi_sources(a.c b.c [LIBRARIES hwloc])           files of libbmi
#   bmi_method(SYMBOL bmi__method_tcp SOURCES a.c [LIBRARIES x])    a method
#   bmi_program(NAME bmi-info SOURCES a.c [LIBRARIES x] [MAN bmi-info.1] [NO_INSTALL])
#   bmi_test(NAME x SOURCES x.c LABEL unit ...)      see there
# A name after LIBRARIES is a package of options.cmake in lower case (hwloc, fabric, lmdb,
# uring) or a library as the linker knows it (rt, m).

include(CheckSymbolExists)

# Writes the symbols that libbmi.map lists to a file, one a line.
function(bmi__exported file map)
    file(STRINGS "${map}" lines REGEX "^        [A-Za-z_0-9]+;$")
    string(REGEX MATCHALL "[A-Za-z_0-9]+" symbols "${lines}")
    list(JOIN symbols "\n" symbols)
    file(CONFIGURE OUTPUT "${file}" CONTENT "${symbols}\n")
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${map}")
endfunction()

# All of the library in one object, whose names are local but for those that libbmi.map exports: a
# program may have a tcp_connect of its own.
function(bmi__whole_object object map)
    set(exported "${PROJECT_BINARY_DIR}/exported.txt")
    bmi__exported("${exported}" "${map}")
    separate_arguments(flags UNIX_COMMAND "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_RELEASE}")
    get_target_property(options bmi_objects BMI_LINK_TIME)
    if(options)
        list(APPEND flags -fPIC ${options} -flinker-output=nolto-rel)
    endif()
    add_custom_command(OUTPUT "${object}"
        COMMAND "${CMAKE_C_COMPILER}" ${flags} -r -nostdlib -o "${object}" "$<TARGET_OBJECTS:bmi_objects>"
        COMMAND "${CMAKE_OBJCOPY}" "--keep-global-symbols=${exported}" "${object}"
        DEPENDS "$<TARGET_OBJECTS:bmi_objects>" "${exported}"
        COMMAND_EXPAND_LISTS VERBATIM COMMENT "Hiding the library's internal names")
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON)
endfunction()

# The targets: every source is compiled once, position-independent, into bmi_objects. bmi_internal is
# for tests that look inside; bmi_static is what is installed.
function(bmi_library)
    add_library(bmi_objects OBJECT "${PROJECT_BINARY_DIR}/method_table.c")
    set_target_properties(bmi_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(bmi_objects PRIVATE "${PROJECT_SOURCE_DIR}")
    target_compile_options(bmi_objects PRIVATE -fno-semantic-interposition)
    if(BMI_QUICK_BUILD AND NOT BMI_SANITIZE)
        target_compile_options(bmi_objects PRIVATE -g) # with types, for unit.abi
    endif()
    # initial-exec: glibc's dlopen has room for the few bytes of thread-local storage, and they cost no
    # call. musl's dlopen refuses a library that is built so.
    check_symbol_exists(__GLIBC__ features.h BMI_GLIBC)
    if(BMI_GLIBC)
        target_compile_options(bmi_objects PRIVATE -ftls-model=initial-exec)
    endif()
    target_link_libraries(bmi_objects PRIVATE bmi_flags)
    # A message's way leads through many small files: without link-time optimisation it takes 8 % more
    # instructions. Fat objects, so that the static library serves programs built without it as well.
    if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release)
        target_compile_options(bmi_objects PRIVATE -flto=auto -ffat-lto-objects)
        set(link_time -flto=auto)
        set_target_properties(bmi_objects PROPERTIES BMI_LINK_TIME "${link_time}")
    endif()

    set(map "${PROJECT_SOURCE_DIR}/cmake/libbmi.map")
    add_library(bmi SHARED $<TARGET_OBJECTS:bmi_objects>)
    set_target_properties(bmi PROPERTIES VERSION "${PROJECT_VERSION}" SOVERSION 0 LINK_DEPENDS "${map}")
    # nodelete: a look-up of a name, which nothing interrupts, may return after a dlclose.
    target_link_options(bmi PRIVATE ${link_time} "LINKER:--version-script=${map}" "LINKER:-Bsymbolic-functions"
        "LINKER:--as-needed" "LINKER:-z,nodelete")

    add_library(bmi_internal STATIC $<TARGET_OBJECTS:bmi_objects>)
    if(CMAKE_OBJCOPY AND NOT BMI_SANITIZE AND NOT BMI_COVERAGE AND NOT BMI_FUZZER)
        bmi__whole_object("${PROJECT_BINARY_DIR}/libbmi.o" "${map}")
        add_library(bmi_static STATIC "${PROJECT_BINARY_DIR}/libbmi.o")
        add_dependencies(bmi_static bmi_objects) # make knows no rule for another target's objects
    else() # instrumented objects have groups that can't be taken apart
        add_library(bmi_static STATIC $<TARGET_OBJECTS:bmi_objects>)
    endif()
    set_target_properties(bmi_static PROPERTIES OUTPUT_NAME bmi)

    foreach(target bmi bmi_internal bmi_static)
        set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
        target_include_directories(${target} INTERFACE
            "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
            "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
        target_link_libraries(${target} PRIVATE Threads::Threads)
    endforeach()
    add_library(bmi::bmi ALIAS bmi)
    add_library(bmi::bmi_static ALIAS bmi_static)
endfunction()

# Adds those folders that have a CMakeLists.txt.
function(bmi_folders)
    foreach(folder IN LISTS ARGN)
        if(EXISTS "${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt")
            add_subdirectory("${PROJECT_SOURCE_DIR}/${folder}" "${PROJECT_BINARY_DIR}/${folder}")
        else()
            message(STATUS "${folder}/ has no CMakeLists.txt: skipped")
        endif()
    endforeach()
endfunction()

# Sets `result` to what target_link_libraries wants for the names.
function(bmi__resolve result)
    set(libraries "")
    foreach(name IN LISTS ARGN)
        if(TARGET "PkgConfig::bmi_${name}")
            list(APPEND libraries "PkgConfig::bmi_${name}")
        else()
            list(APPEND libraries "${name}")
        endif()
    endforeach()
    set(${result} "${libraries}" PARENT_SCOPE)
endfunction()

function(bmi_sources)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "LIBRARIES")
    list(TRANSFORM arg_UNPARSED_ARGUMENTS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
    target_sources(bmi_objects PRIVATE ${arg_UNPARSED_ARGUMENTS})
    bmi__resolve(libraries ${arg_LIBRARIES})
    foreach(target bmi_objects bmi bmi_static)
        target_link_libraries(${target} PRIVATE ${libraries})
    endforeach()
    target_link_libraries(bmi_internal PUBLIC ${libraries}) # our headers include some of theirs
    set_property(GLOBAL APPEND PROPERTY bmi_libraries ${arg_LIBRARIES})
endfunction()

function(bmi_method)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "SYMBOL" "SOURCES;LIBRARIES")
    bmi_sources(${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY bmi_methods "${arg_SYMBOL}")
endfunction()

# An installed program: sees public headers only, needs libbmi.so.
function(bmi_program)
    cmake_parse_arguments(PARSE_ARGV 0 arg "NO_INSTALL" "NAME;MAN" "SOURCES;LIBRARIES")
    add_executable("${arg_NAME}" ${arg_SOURCES})
    bmi__resolve(libraries ${arg_LIBRARIES})
    target_link_libraries("${arg_NAME}" PRIVATE bmi_flags bmi ${libraries})
    if(NOT arg_NO_INSTALL)
        # Installed programs find the library beside them, whatever the prefix is.
        file(RELATIVE_PATH up "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
        set_target_properties("${arg_NAME}" PROPERTIES INSTALL_RPATH "$ORIGIN/${up}")
        install(TARGETS "${arg_NAME}" RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
        install(FILES "${PROJECT_SOURCE_DIR}/tools/completion.bash" RENAME "${arg_NAME}"
            DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
    endif()
    if(arg_MAN)
        bmi_man(${arg_MAN})
    endif()
endfunction()

# Installs manual pages into the section of their extension.
function(bmi_man)
    foreach(page IN LISTS ARGN)
        cmake_path(GET page EXTENSION LAST_ONLY section)
        string(SUBSTRING "${section}" 1 -1 section)
        install(FILES "${page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
    endforeach()
endfunction()

include(bmi_test)

# After all folders: the table of methods, and the tests that need to know all others.
function(bmi_finish)
    get_property(methods GLOBAL PROPERTY bmi_methods)
    set(declarations "")
    set(entries "")
    foreach(symbol IN LISTS methods)
        string(APPEND declarations "extern const struct bmi_method ${symbol};\n")
        string(APPEND entries "    &${symbol},\n")
    endforeach()
    configure_file("${PROJECT_SOURCE_DIR}/cmake/method_table.c.in"
                   "${PROJECT_BINARY_DIR}/method_table.c" @ONLY)
    bmi__fuzz_tests()
endfunction()
