# Compiler flags every target of the project shares.
function(lockstep_configure target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion
    -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith)
  # No contraction of a*b+c: the same source gives the same bits on every processor.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(LOCKSTEP_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
    # The thread sanitizer does not follow fences, and gcc says so. Ours order accesses that are atomic themselves.
    if(LOCKSTEP_SANITIZE STREQUAL "thread" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
  endif()
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE LOCKSTEP_VERSION="${PROJECT_VERSION}")
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()
