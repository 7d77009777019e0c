#!/usr/bin/env bash
# What is installed: headers that stand alone, only ls_ symbols, pkg-config files and a CMake package that
# a user's project builds with.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"

DESTDIR='' cmake --install "$build" --prefix "$work/usr" >"$work/log" 2>&1 || { cat "$work/log"; fail "cmake --install"; }
lib=$(dirname "$(find "$work/usr" -name 'liblockstep.so')")
grep -q fsanitize "$build/build.ninja" && sanitized=1 || sanitized=

for library in lockstep-comm lockstep; do
  foreign=$(nm -D --defined-only "$lib/lib$library.so" | awk '{print $3}' | grep -v '^ls_' | grep -v '^_init$\|^_fini$\|^__\(asan\|ubsan\|odr_asan\)' || true)
  [ -z "$foreign" ] || fail "lib$library.so exports $foreign"
  nm -D --defined-only "$lib/lib$library.so" | grep -q ' T ls_' || fail "lib$library.so exports nothing"
done
if nm -D "$lib/liblockstep-comm.so" | grep -q ' U dnnl_\| U json_'; then
  fail "liblockstep-comm.so needs tensors' or JSON's libraries"
fi

for header in "$work"/usr/include/lockstep/*.h; do
  echo "#include <lockstep/$(basename "$header")>" | gcc -std=c17 -Wall -Wextra -Werror -pedantic -fsyntax-only -I "$work/usr/include" -xc - || fail "$header alone in C"
  if command -v g++ >/dev/null; then
    echo "#include <lockstep/$(basename "$header")>" | g++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I "$work/usr/include" -xc++ - || fail "$header alone in C++"
  fi
done

[ -z "$sanitized" ] || finish # linking a user's program would need the sanitizer's runtime

cat >"$work/comm.c" <<'C'
#include <lockstep/reducer.h>
#include <stdio.h>
int main(void) {
    ls_job *job;
    float x = 2;
    if (ls_job_init(&job, NULL) != LS_OK || ls_all_reduce(ls_job_world(job), &x, &x, 1, LS_F32, LS_SUM) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_text());
        return 1;
    }
    printf("%d %g\n", ls_job_world_size(job), x);
    ls_job_finish(job);
    return 0;
}
C
cat >"$work/all.c" <<'C'
#include <lockstep/lockstep.h>
#include <stdio.h>
int main(void) {
    ls_device *device;
    ls_model *model;
    if (ls_device_cpu(&device, 0) != LS_OK)
        return 1;
    const ls_model_options options = {.device = device, .seed = 1};
    if (ls_model_create(&model, "mlp:4,3,2", &options) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_text());
        return 1;
    }
    printf("%zu\n", ls_model_element_count(model));
    ls_model_destroy(model);
    ls_device_destroy(device);
    return 0;
}
C
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
# shellcheck disable=SC2046
gcc "$work/comm.c" $(pkg-config --cflags --libs lockstep-comm) -o "$work/comm" && [ "$("$work/comm")" = "1 2" ] || fail "pkg-config lockstep-comm"
# shellcheck disable=SC2046
gcc "$work/all.c" $(pkg-config --cflags --libs lockstep) -o "$work/all" && [ "$("$work/all")" = 23 ] || fail "pkg-config lockstep"
[ "$("$work/usr/bin/lockstep" run -n 3 --no-prefix -- "$work/comm" | sort -u)" = "3 6" ] || fail "installed lockstep run"

mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.21)
project(user C)
find_package(lockstep REQUIRED)
add_executable(comm ../comm.c)
target_link_libraries(comm Lockstep::lockstep-comm)
add_executable(whole ../all.c)
target_link_libraries(whole Lockstep::lockstep)
C
cmake -S "$work/project" -B "$work/project/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" >"$work/log" 2>&1 &&
  cmake --build "$work/project/build" >>"$work/log" 2>&1 || { cat "$work/log"; fail "find_package(lockstep)"; }
[ "$("$work/project/build/whole")" = 23 ] || fail "the CMake project's program"

# liblockstep-comm builds alone, without the libraries that only tensors need
cmake -S "$source_dir" -B "$work/alone" -G Ninja -DLOCKSTEP_COMM_ONLY=ON -DLOCKSTEP_TESTS=OFF -DLOCKSTEP_WERROR=ON >"$work/log" 2>&1 &&
  cmake --build "$work/alone" >>"$work/log" 2>&1 || { cat "$work/log"; fail "liblockstep-comm alone"; }
finish
