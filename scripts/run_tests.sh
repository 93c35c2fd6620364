#!/usr/bin/env bash
# Runs test programs one after another and says at the end how many passed: scripts/run_tests.sh PROGRAM... (INTERPRETER=SCRIPT for a script).
# A program that fails does not keep the others from running; the exit status is 0 only when all of them passed, and there was one.
set -u
passed=0
failed=()
for test in "$@"; do
    case "$test" in
        *=*) command=("${test%%=*}" "${test#*=}") ;;
        *) command=("$test") ;;
    esac
    printf '\n== %s\n' "${test#*=}"
    start=$(date +%s)
    if "${command[@]}"; then passed=$((passed + 1)); else failed+=("${test#*=}"); fi
    printf '== %s: %d s\n' "${test#*=}" $(($(date +%s) - start))
done
for test in "${failed[@]+"${failed[@]}"}"; do printf 'FAILED: %s\n' "$test"; done
printf '%d passed, %d failed\n' "$passed" "${#failed[@]}"
[ "$passed" -gt 0 ] && [ "${#failed[@]}" -eq 0 ]
