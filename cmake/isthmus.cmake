# isthmus.cmake - the four words of this tree: isthmus_backend(), isthmus_library(), isthmus_tool(), isthmus_test().
add_library(isthmus_flags INTERFACE)
target_compile_definitions(isthmus_flags INTERFACE _GNU_SOURCE)
target_include_directories(isthmus_flags INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(isthmus_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
  -Wmissing-prototypes -Wcast-function-type -Wcast-qual -Wformat=2 -Wundef -Wvla $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

# Linked in statically and hidden: libisthmus.so then needs libc alone.
find_library(SODIUM_ARCHIVE NAMES libsodium.a REQUIRED)
find_library(XXHASH_ARCHIVE NAMES libxxhash.a REQUIRED)
set(ISTHMUS_ARCHIVES ${SODIUM_ARCHIVE} ${XXHASH_ARCHIVE})

# isthmus_backend(NAME SOURCES ...): built in, and also as libisthmus-NAME.so.
function(isthmus_backend name)
  cmake_parse_arguments(A "" "" "SOURCES" ${ARGN})
  add_library(backend_${name} OBJECT ${A_SOURCES})
  target_compile_definitions(backend_${name} PRIVATE IST_BUILTIN=isthmus_backend_${name})
  target_include_directories(backend_${name} PRIVATE src)
  target_link_libraries(backend_${name} PUBLIC isthmus_flags)
  add_library(plug_${name} MODULE ${A_SOURCES} ${ISTHMUS_BASE})
  target_include_directories(plug_${name} PRIVATE src)
  target_link_libraries(plug_${name} PRIVATE isthmus_flags)
  set_target_properties(plug_${name} PROPERTIES OUTPUT_NAME isthmus-${name})
  set_property(GLOBAL APPEND PROPERTY ISTHMUS_BUILTIN ${name})
endfunction()

# isthmus_library(SOURCES ...): libisthmus.so, and libisthmus_testing.a that hides nothing. After the last
# isthmus_backend(): the table of built-in backends is generated, in that order.
function(isthmus_library)
  cmake_parse_arguments(A "" "" "SOURCES" ${ARGN})
  get_property(names GLOBAL PROPERTY ISTHMUS_BUILTIN)
  foreach(b ${names})
    string(APPEND decl "const struct ist_backend *isthmus_backend_${b}(void);\n")
    string(APPEND rows "\tisthmus_backend_${b},\n")
    list(APPEND objects $<TARGET_OBJECTS:backend_${b}>)
  endforeach()
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/builtin.c CONTENT
"#include <isthmus/backend.h>\n${decl}extern const ist_backend_entry ist__builtin[];\nconst ist_backend_entry ist__builtin[] = {\n${rows}\t0,\n};\n")
  add_library(isthmus_core OBJECT ${A_SOURCES} ${PROJECT_BINARY_DIR}/builtin.c)
  target_include_directories(isthmus_core PRIVATE src)
  target_compile_definitions(isthmus_core PRIVATE IST_VERSION_TEXT="${PROJECT_VERSION}"
    IST_BUILD_TEXT="${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_BUILD_TYPE}")
  target_link_libraries(isthmus_core PUBLIC isthmus_flags)

  add_library(isthmus SHARED $<TARGET_OBJECTS:isthmus_core> ${objects})
  set_target_properties(isthmus PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE C
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/isthmus.map)
  target_link_libraries(isthmus PUBLIC isthmus_flags PRIVATE ${ISTHMUS_ARCHIVES} Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(isthmus PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/isthmus.map -Wl,--exclude-libs,ALL
    -Wl,-Bsymbolic -Wl,-z,now -Wl,-z,nodelete)

  add_library(isthmus_testing STATIC $<TARGET_OBJECTS:isthmus_core> ${objects})
  set_target_properties(isthmus_testing PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(isthmus_testing PUBLIC src)
  target_link_libraries(isthmus_testing PUBLIC isthmus_flags ${ISTHMUS_ARCHIVES} Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

# isthmus_tool(NAME SOURCES ... LIBS ...): a program that sees public headers only.
function(isthmus_tool name)
  cmake_parse_arguments(A "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name}_tool ${A_SOURCES})
  set_target_properties(${name}_tool PROPERTIES OUTPUT_NAME ${name}
    BUILD_RPATH "$ORIGIN/../lib" INSTALL_RPATH "$ORIGIN/../lib")
  target_link_libraries(${name}_tool PRIVATE isthmus_flags isthmus ${A_LIBS})
endfunction()

# isthmus_test(NAME SOURCES ... [LIBS ...] [TIMEOUT s] [ARGS ...]): one process with a deadline; exit code 77: skipped.
function(isthmus_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  add_executable(${name} ${A_SOURCES})
  target_include_directories(${name} PRIVATE src tests)
  target_link_libraries(${name} PRIVATE isthmus_testing cmocka ${A_LIBS})
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
