# Flags shared by every target. Floating point must give the same bits in every build type, so
# contraction is off and nothing may turn fast-math on (docs/adr: determinism).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Dev CACHE STRING "Dev or Release" FORCE)
endif()
set(CMAKE_CXX_FLAGS_DEV "-O1 -g1" CACHE STRING "" FORCE)
# Kernels have options of their own. GCC looks for garbage from 800 MB on, not from 128 MB on: a seventh less time for
# the largest files, and up to 1.8 GB each.
set(CMAKE_CXX_FLAGS_QUICK "-O0" CACHE STRING "" FORCE)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  string(APPEND CMAKE_CXX_FLAGS_QUICK " --param=ggc-min-heapsize=800000")
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -fstack-protector-strong -D_FORTIFY_SOURCE=2" CACHE STRING "" FORCE)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()
find_program(LLD NAMES ld.lld-19)
if(LLD)
  get_filename_component(LLD_DIR ${LLD} REALPATH)
  get_filename_component(LLD_DIR ${LLD_DIR} DIRECTORY)
  add_link_options(-fuse-ld=lld -B${LLD_DIR})
endif()

add_compile_options(
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wswitch-enum -Wnon-virtual-dtor
  -Woverloaded-virtual -Wno-missing-field-initializers -ffp-contract=off -fno-fast-math
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
add_compile_definitions(_GLIBCXX_ASSERTIONS)
if(RUBATO_SANITIZE)
  add_compile_options(-fsanitize=${RUBATO_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  # Half of the compile time for what AddressSanitizer sees itself (null) or x86-64 does not mind.
  if(RUBATO_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=null,alignment,object-size)
  endif()
  # ThreadSanitizer does not understand bare fences; Asio's own come on top of its mutexes.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  add_link_options(-fsanitize=${RUBATO_SANITIZE})
endif()
# What GCC 12 says wrongly of the standard library's inlined code is left out where that is a system
# header; in a precompiled one it is not. AddressSanitizer sees what these would rightly see.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Dev" AND NOT RUBATO_SANITIZE)
  add_compile_options(-Werror)
else()
  # At -O2, and in instrumented code, it sees uninitialised variants, too. The dev build is where
  # warnings count.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-maybe-uninitialized -Wno-tsan)
  endif()
endif()
# Files that are joined see each other's names.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-shadow -Wno-subobject-linkage)
endif()
find_package(Threads REQUIRED)
