# plugins.cmake - plug-ins for the tests: the example, and one for each fault of broken.c with the checks it must fail.
function(isthmus_test_plugin name source)
  add_library(${name} MODULE ${source})
  target_link_libraries(${name} PRIVATE isthmus_flags)
  target_compile_definitions(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugins)
endfunction()

# check_plugin(TEST TARGET [CHECK,CHECK]): the suite on a plug-in; exactly those checks fail.
function(check_plugin test target checks)
  add_test(NAME ${test} COMMAND check_test $<TARGET_FILE:${target}> ${checks})
  set_tests_properties(${test} PROPERTIES TIMEOUT 600)
endfunction()

add_executable(check_test tests/check_test.c)
target_link_libraries(check_test PRIVATE isthmus_conformance)

isthmus_test_plugin(wire examples/03_backend.c)
check_plugin(check_wire wire "")
check_plugin(check_self plug_self "")
if(TARGET plug_host)
  check_plugin(check_host plug_host "")
endif()

set(planted
  LAST_BYTE every_byte_arrives,every_byte_arrives_across_processes
  WRITES_PAST nothing_is_written_outside
  REORDER messages_keep_their_order
  BLOCKS slots_do_not_block
  NO_MOVE big_messages_arrive
  LEAKS_MEMORY operations_leave_nothing,fifty_cycles_leave_nothing,close_waits_for_nobody
  LEAKS_FD operations_leave_nothing,fifty_cycles_leave_nothing
  BAD_CODE codes_are_in_error_h
  WRITES_OUTPUT outputs_only_on_ok
  IGNORES_ABORT abort_wakes_and_ends_all,abort_in_mid_transfer,start_after_abort_is_refused
  NO_MISMATCH different_bytes_are_noticed
  LOST_WAKE_UP wake_ups_are_not_lost
  NEVER_SLEEPS an_idle_channel_sleeps
  MOVED_FALLS moved_counts_and_never_falls
  ALL_TAKE takers_alone_get_the_bytes
  TAKER_LEFT_OUT takers_alone_get_the_bytes
  CRASHES hostile_wires_are_refused
  CLOSE_WAITS close_waits_for_nobody)
while(planted)
  list(POP_FRONT planted bug checks)
  string(TOLOWER ${bug} name)
  isthmus_test_plugin(broken_${name} tests/plugins/broken.c BUG_${bug})
  check_plugin(check_finds_${name} broken_${name} ${checks})
endwhile()
