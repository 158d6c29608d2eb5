# SPDX-License-Identifier: BSD-3-Clause
#
# Completion for bash of libbmi's programs. Each word comes from the help of the program itself:
# - an option: --name anywhere in it; -x at the begin of a line or behind a bracket;
# - a command, verb, or pattern: the first word of a line after two blanks, up to the line "options:".
# An option that the help shows with a word behind it takes an argument. Arguments are completed as file names.
_bmi() {
  local help commands word
  help=$("$1" --help 2>/dev/null) || return
  if [[ $2 == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE -e '--[a-z][a-z-]*|(^ *|\[)-[A-Za-z]\b' <<<"$help" |
      tr -d ' [' | sort -u)" -- "$2")
    return
  fi
  [[ $3 == -* && $help == *"$3 "[[:alnum:]]* ]] && return
  commands=$(sed -nE '/^[Oo]ptions:/q; s/^  ([a-z]+)( .*)?$/\1/p' <<<"$help")
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $'\n'$commands$'\n' == *$'\n'"$word"$'\n'* ]] && return
  done
  mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$2")
}
complete -o default -F _bmi bmi-bench bmi-bench-mpi bmi-info bmi-keys bmi-metrics bmi-ping bmi-rpc bmi-stripefs bmi-stripefsd
