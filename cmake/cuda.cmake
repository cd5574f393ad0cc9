# CUDA, where there is a compiler for it: `scripts/setup cuda`, or a toolkit of the machine in CUDA_HOME, or
# else in /usr/local/cuda. Compiling needs no GPU, and programs link nothing but the static runtime, which looks for a
# driver when it is first asked for a device; cuBLAS is looked up then, too (worker/backend/cuda/matmul.h).
#
# Sets RUBATO_CUDA_KIT (empty: none) and NCCL_INCLUDE, where NCCL's header is. -DRUBATO_CUDA=OFF
# builds without, -DRUBATO_CUDA=/usr/local/cuda with that one.
set(RUBATO_CUDA AUTO CACHE STRING "AUTO, OFF, or the folder of a CUDA 13 toolkit")
set(RUBATO_CUDA_KIT "")
# Older compilers do not know all our architectures; programs look up cuBLAS of this one, and want a driver for it
# (kDriverLeast in tools/localnode/gpus.h).
set(RUBATO_CUDA_MAJOR 13)
set(cuda_missing "scripts/setup cuda brings its compiler")
# Which `scripts/setup cuda` touches: builds that were configured before look again.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/build-cuda)

# rubato_cuda_version(FOLDER VARIABLE): 13.0, say, of the toolkit in a folder.
function(rubato_cuda_version folder variable)
  set(line "")
  if(EXISTS ${folder}/include/cuda.h)
    file(STRINGS ${folder}/include/cuda.h line REGEX "^#define CUDA_VERSION +[0-9]+")
  endif()
  string(REGEX MATCH "[0-9]+" number "${line}")
  set(version unknown)
  if(number)
    math(EXPR major "${number} / 1000")
    math(EXPR minor "${number} % 1000 / 10")
    set(version ${major}.${minor})
  endif()
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

if(RUBATO_SANITIZE)
  # The sanitizers see nothing of it.
elseif(RUBATO_CUDA STREQUAL AUTO)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/build-cuda --print
    OUTPUT_VARIABLE RUBATO_CUDA_KIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(places $ENV{CUDA_HOME})
  if(EXISTS /usr/local/cuda)
    list(APPEND places /usr/local/cuda)
  endif()
  list(REMOVE_DUPLICATES places)
  foreach(place IN LISTS places)
    if(RUBATO_CUDA_KIT)
      break()
    endif()
    rubato_cuda_version(${place} version)
    if(NOT EXISTS ${place}/include/cublasLt.h)
      string(PREPEND cuda_missing "${place} has no include/cublasLt.h; ")
    elseif(NOT version MATCHES "^${RUBATO_CUDA_MAJOR}\\.")
      string(PREPEND cuda_missing "${place} is CUDA ${version}, not ${RUBATO_CUDA_MAJOR}; ")
    else()
      set(RUBATO_CUDA_KIT ${place})
    endif()
  endforeach()
elseif(RUBATO_CUDA)
  rubato_cuda_version(${RUBATO_CUDA} version)
  if(NOT version MATCHES "^${RUBATO_CUDA_MAJOR}\\.")
    message(FATAL_ERROR "RUBATO_CUDA: ${RUBATO_CUDA} is CUDA ${version}, not ${RUBATO_CUDA_MAJOR}")
  endif()
  set(RUBATO_CUDA_KIT ${RUBATO_CUDA})
endif()
if(RUBATO_CUDA_KIT)
  find_path(NCCL_INCLUDE nccl.h PATHS ${RUBATO_CUDA_KIT}/../nccl/include NO_CACHE)
  message(STATUS "CUDA backend: compiled with ${RUBATO_CUDA_KIT}/bin/nvcc")
else()
  message(STATUS "CUDA backend: left out (${cuda_missing})")
endif()

# Our own kernels, always with the flags of nvcc.options whatever the preset: no contraction,
# subnormals flushed, division and square root rounded correctly; a kernel that spills registers is an
# error. Machine code alone, so that no driver compiles anew what a job's bits depend on.
set(RUBATO_CUDA_OPTIONS ${PROJECT_SOURCE_DIR}/worker/backend/cuda/nvcc.options)
set(RUBATO_CUDA_FLAGS
  -gencode arch=compute_80,code=sm_80
  -gencode arch=compute_90a,code=sm_90a
  -gencode arch=compute_100a,code=sm_100a
  -Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

# rubato_cuda_objects(VARIABLE SOURCES …): the objects of .cu files, for a library's sources.
function(rubato_cuda_objects variable)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(objects)
  foreach(source ${ARG_SOURCES})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${RUBATO_CUDA_KIT}/bin/nvcc -ccbin ${CMAKE_CXX_COMPILER}
              -optf ${RUBATO_CUDA_OPTIONS} ${RUBATO_CUDA_FLAGS} -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      MAIN_DEPENDENCY ${source} DEPENDS ${RUBATO_CUDA_OPTIONS} DEPFILE ${object}.d VERBATIM COMMENT "CUDA ${source}")
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
