#!/usr/bin/env bash
# Which room may include which: every folder under src/ knows only those above it, liblockstep-comm knows no
# tensors, and no library of kernels is named outside of src/device.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$source_dir" || exit 1

# room: the rooms it may include, itself left out
declare -A above=(
  [base]=""
  [comm]="base"
  [reducer]="base comm"
  [device]="base"
  [tensor]="base device"
  [autograd]="base device tensor"
  [nn]="base device tensor autograd"
  [optim]="base device tensor autograd nn"
)
above[parallel]="base comm reducer device tensor autograd nn optim"
for room in data checkpoint launch; do above[$room]="${above[parallel]} parallel"; done
above[cli]="${above[launch]} data checkpoint launch"

# public header: the highest room that may include it
declare -A home=(
  [status]=base [dtype]=base [random]=base
  [job]=comm [mpi]=comm [group]=comm [hook]=comm [reducer]=reducer
  [tensor]=device [ops]=autograd [model]=autograd [optimizer]=optim
  [ddp]=parallel [dp]=parallel [local_sgd]=parallel [dataset]=data [checkpoint]=checkpoint [lockstep]=cli
)

# may ROOM OTHER: whether ROOM may include what is OTHER's
may() { [[ " $1 ${above[$1]} " == *" $2 "* ]]; }

# look ROOM FILE: every include of FILE
look() {
  local room=$1 file=$2 header other
  while read -r header; do
    case $header in
    \"*)
      header=${header//\"/}
      other=${header%%/*}
      ;;
    *)
      header=${header//[<>]/}
      other=${home[$(basename "$header" .h)]:-}
      [ -n "$other" ] || { fail "$file: tests/test_rooms.sh does not know whose $header is"; continue; }
      ;;
    esac
    may "$room" "$other" || fail "$file: $room includes $header of $other, which is not above it"
  done < <(sed -n 's/^ *# *include *\("[^"]*"\|<lockstep\/[^>]*>\).*/\1/p' "$file")
}

seen=0
for folder in src/*/; do
  room=$(basename "$folder")
  [ -n "${above[$room]+known}" ] || { fail "src/$room: not in the list of rooms"; continue; }
  while read -r file; do
    look "$room" "$file"
    seen=$((seen + 1))
  done < <(find "$folder" -name '*.[ch]')
done
[ "$seen" -gt 100 ] || fail "only $seen files were looked at"
for file in include/lockstep/*.h; do
  room=${home[$(basename "$file" .h)]:-}
  [ -n "$room" ] || { fail "$file: tests/test_rooms.sh does not know whose it is"; continue; }
  look "$room" "$file"
done

# only PATTERN WHERE...: an include that matches stands nowhere but in these places
only() {
  local pattern=$1 found
  shift
  found=$(grep -rlE "^ *# *include *<$pattern" src include --include='*.[ch]' | grep -vE "^($(IFS='|'; echo "$*"))" || true)
  [ -z "$found" ] || fail "<$pattern> is included by ${found//$'\n'/, }; only $* may"
}
only 'oneapi/|dnnl' src/device/
only 'omp\.h' src/device/
only 'sodium' src/comm/tcp/ src/cli/doctor
only 'mpi\.h' src/comm/mpi/engine/
only 'jansson' src/base/json.h src/checkpoint/ src/cli/doctor
only 'uv\.h' src/launch/ src/cli/doctor
only 'hwloc' src/launch/ src/cli/doctor
only 'zlib' src/data/ src/cli/doctor
found=$(grep -rlwE 'dnnl_[a-z_]+' src include --include='*.[ch]' | grep -v '^src/device/' || true)
[ -z "$found" ] || fail "oneDNN is named outside of src/device: $found"
finish
