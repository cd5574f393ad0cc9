# rubato_library(NAME SOURCES … [USES rubato targets …] [WRAPS third-party libraries …])
#   One static library per folder. USES is public: its headers are seen by our users. WRAPS is
#   private: no third-party type stands in a public header.
# rubato_program(NAME SOURCES … USES … [WRAPS …])
# rubato_test(NAME SOURCES … USES … [WRAPS …] [LABELS …] [UNTHREADED] [JOINED])
#   A GoogleTest program, registered with ctest as one test; label "unit" unless told otherwise.
#   The target tests-LABEL builds all programs of a label. UNTHREADED: nothing of ours in it starts a
#   thread, so ThreadSanitizer has nothing to find there, and its lane does not build it. JOINED: where the product's
#   files are joined, these are, too; a name in an unnamed namespace is then in one of them alone.
# rubato_under_sanitizers(TEST TIMEOUT seconds)
#   The time limit of a test, and in sanitizer builds what else it needs: a longer one, and the
#   suppressions of tests/sanitizers. rubato_test does it by itself.
# rubato_pytest(NAME FILE [USES programs it runs …] [LABELS …] [TIMEOUT seconds] [LOCK name] [UNTIMED])
#   A Python test with real Kubernetes and PyTorch at hand (scripts/with-tools); label "integration"
#   unless told otherwise. RUBATO_BUILD names the build folder. One runs at a time, from the beginning on, beside tests
#   that compute in what it leaves of the cores (RUBATO_NICE); but one with a LOCK of its own runs beside it, and so
#   does one of those that are UNTIMED: no time that it waits or that passes is part of what they test, they start no
#   nodes, and their ports and folders are free ones.
#
# Half of the time of a small file goes into parsing the standard library. GCC does that once, for
# libraries and for test programs (which are position-independent executables, and include
# GoogleTest). A file must still include what it uses: the fuzz build has no precompiled headers, though it joins the
# files of some folders.
# What is compiled with other options than the rest (-O, OpenMP, sanitizers) cannot use them.
set(RUBATO_PRECOMPILED <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable>
  <cstring> <deque> <functional> <iterator> <limits> <list> <map> <memory> <mutex> <numeric> <optional>
  <ostream> <set> <span> <stop_token> <string> <string_view> <unordered_map> <utility> <variant>
  <vector> <fmt/format.h>)
# Not CLI11, which defines objects: all that use the header would compile their code (4 s each).
if(CMAKE_BUILD_TYPE STREQUAL "Quick")
  list(APPEND RUBATO_PRECOMPILED <filesystem> <fstream> <iostream> <queue> <ranges> <sstream> <thread> <tuple> <unordered_set>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  find_package(fmt REQUIRED)
  set(precompiled ${CMAKE_BINARY_DIR}/precompiled.cc)
  if(NOT EXISTS ${precompiled})
    file(WRITE ${precompiled} "int main() {}\n")
  endif()
  add_library(rubato_precompiled OBJECT ${precompiled})
  target_link_libraries(rubato_precompiled PRIVATE fmt::fmt Threads::Threads)
  target_precompile_headers(rubato_precompiled PRIVATE ${RUBATO_PRECOMPILED})
  if(RUBATO_TESTS)
    add_executable(rubato_precompiled_test ${precompiled})
    target_link_libraries(rubato_precompiled_test PRIVATE fmt::fmt Threads::Threads)
    target_precompile_headers(rubato_precompiled_test PRIVATE ${RUBATO_PRECOMPILED} <gtest/gtest.h>)
  endif()
endif()

# rubato_precompile(TARGET [from])
function(rubato_precompile name from)
  if(TARGET ${from})
    target_precompile_headers(${name} REUSE_FROM ${from})
  endif()
endfunction()

function(rubato_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;WRAPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  rubato_precompile(${name} rubato_precompiled)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_USES} PRIVATE ${ARG_WRAPS} Threads::Threads)
endfunction()

function(rubato_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;WRAPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  if(CMAKE_BUILD_TYPE STREQUAL "Quick")  # compiled as libraries are, programs can use what is precompiled for those
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
    rubato_precompile(${name} rubato_precompiled)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_USES} ${ARG_WRAPS} Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

set(RUBATO_NICE nice -n 10)

function(rubato_test name)
  cmake_parse_arguments(ARG "UNTHREADED;JOINED" "TIMEOUT" "SOURCES;USES;WRAPS;LABELS" ${ARGN})
  if(ARG_UNTHREADED AND RUBATO_SANITIZE MATCHES thread)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(ARG_JOINED)
    set_target_properties(${name} PROPERTIES UNITY_BUILD "$CACHE{CMAKE_UNITY_BUILD}")
  endif()
  rubato_precompile(${name} rubato_precompiled_test)
  rubato_label_targets(${name} ${ARG_LABELS})
  target_link_libraries(${name} PRIVATE ${ARG_USES} ${ARG_WRAPS} gtest_main gtest Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${RUBATO_NICE} $<TARGET_FILE:${name}> WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  rubato_under_sanitizers(${name} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# rubato_test_deferred(NAME [FILTER tests])
#   Registers the test program once more, on a device whose memory is apart
#   (worker/testing/deferred_device.h).
function(rubato_test_deferred name)
  cmake_parse_arguments(ARG "" "FILTER" "" ${ARGN})
  if(NOT TARGET ${name})
    return()  # not in this build
  endif()
  if(NOT ARG_FILTER)
    set(ARG_FILTER *)
  endif()
  add_test(NAME ${name}_deferred COMMAND ${CMAKE_COMMAND} -E env RUBATO_TEST_DEVICE=deferred
           $<TARGET_FILE:${name}> --gtest_filter=${ARG_FILTER} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name}_deferred PROPERTIES LABELS unit)
  rubato_under_sanitizers(${name}_deferred TIMEOUT 300)
endfunction()

function(rubato_under_sanitizers name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "" ${ARGN})
  if(NOT RUBATO_SANITIZE)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    return()
  endif()
  math(EXPR slow "${ARG_TIMEOUT} * 5")
  set(folder ${PROJECT_SOURCE_DIR}/tests/sanitizers)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${slow} ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${folder}/lsan.supp:print_suppressions=0;TSAN_OPTIONS=suppressions=${folder}/tsan.supp:second_deadlock_stack=1:print_suppressions=0;UBSAN_OPTIONS=print_stacktrace=1")
endfunction()

function(rubato_pytest name file)
  cmake_parse_arguments(ARG "UNTIMED" "TIMEOUT;LOCK" "USES;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS integration)
  endif()
  if(ARG_UNTIMED)
    set(ARG_LOCK untimed)
  elseif(NOT ARG_LOCK)
    set(ARG_LOCK processes)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(ARG_USES)
    rubato_label_targets("${ARG_USES}" ${ARG_LABELS})
  endif()
  add_test(NAME ${name}
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/with-tools
            pytest -p no:cacheprovider -ra --tb=short ${CMAKE_CURRENT_SOURCE_DIR}/${file}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    RESOURCE_LOCK ${ARG_LOCK} COST 1000 ENVIRONMENT "RUBATO_BUILD=${CMAKE_BINARY_DIR}")
endfunction()

# Makes the target tests-LABEL of each label depend on the given targets.
function(rubato_label_targets targets)
  foreach(label ${ARGN})
    if(NOT TARGET tests-${label})
      add_custom_target(tests-${label})
    endif()
    add_dependencies(tests-${label} ${targets})
  endforeach()
endfunction()
