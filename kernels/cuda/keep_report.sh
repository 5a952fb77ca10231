#!/bin/sh
# Runs nvcc with the given arguments. Writes OBJECT.kernels beside the object, for dev/kernel_report.py: for
# each kernel the launch that its PTX states, and the registers, memory and spills that `ptxas -v` reports.
# All other output of nvcc is passed on.
object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
case $object in
  *.o) ;;
  *) exec "$@" ;;
esac
rm -rf "$object.kept" && mkdir -p "$object.kept"
"$@" --keep --keep-dir "$object.kept" 2>"$object.kept/stderr"
status=$?
about='^ptxas info|^ +[0-9]+ bytes (stack frame|cumulative stack)'
grep -Ev "$about" "$object.kept/stderr" >&2
{
  grep -hE '^\.target|^(\.visible |\.weak )?\.entry|^\.maxntid|^\.minnctapersm|^\.maxnreg|goat_dynamic_shared|// goat:' "$object.kept"/*.ptx
  grep -E "$about" "$object.kept/stderr"
} >"$object.kernels" 2>/dev/null
rm -rf "$object.kept"
exit $status
