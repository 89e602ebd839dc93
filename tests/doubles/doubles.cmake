# doubles.cmake - libraries that stand in for those of a vendor. Tests find them by LD_LIBRARY_PATH.
function(isthmus_double name soname source)
  cmake_parse_arguments(A "" "FOLDER" "DEFINE" ${ARGN})
  if(NOT A_FOLDER)
    set(A_FOLDER doubles)
  endif()
  add_library(${name} SHARED ${source})
  target_link_libraries(${name} PRIVATE isthmus_flags Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(${name} PRIVATE ${A_DEFINE})
  string(REGEX MATCH "^lib(.*)\\.so\\.([0-9]+)$" _ ${soname})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${CMAKE_MATCH_1} SOVERSION ${CMAKE_MATCH_2}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${A_FOLDER})
endfunction()

isthmus_double(fake_nccl libnccl.so.2 tests/doubles/fake_nccl.c)
isthmus_double(fake_nccl_old libnccl.so.2 tests/doubles/fake_nccl.c FOLDER doubles/old DEFINE FAKE_NCCL_OLD)
