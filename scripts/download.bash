# shellcheck shell=bash
# Sourced by the download scripts: fetches files once, whole, and checked.
#
# Rules: a file appears under its name only when it is complete; a file must match downloads.sha256, which lists it by the
# path of its address, so that a mirror gives the same bytes. A file that is not listed is refused, and with
# DOWNLOADS_RECORD=1 listed: commit that once the checksum has been compared with the publisher's.

DOWNLOADS_SHA256="${DOWNLOADS_SHA256:-$(dirname "${BASH_SOURCE[0]}")/downloads.sha256}"

# read_options ARGUMENTS...: --dest, --mirror and --dry-run into DEST, MIRROR and dry_run.
# shellcheck disable=SC2034 # the scripts that source this read them
read_options() {
  dry_run=0
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help) usage; exit 0 ;;
      --dest) DEST=${2:?--dest needs a folder}; shift ;;
      --mirror) MIRROR=${2:?--mirror needs an address}; shift ;;
      --dry-run) dry_run=1 ;;
      *) echo "${0##*/}: unknown argument $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
  done
}

# path_of URL: what comes after the host.
path_of() {
  local rest=${1#*://}
  echo "${rest#*/}"
}

recorded_sum() {
  [ -f "$DOWNLOADS_SHA256" ] && awk -v path="$(path_of "$1")" '$2 == path {print $1}' "$DOWNLOADS_SHA256"
}

# matches FILE SUM: whether FILE is there and has that checksum.
matches() {
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# download URL FILE: makes sure that FILE holds what URL gives.
download() {
  local url=$1 file=$2 wanted part sum
  wanted=$(recorded_sum "$url" || true)
  if [ -n "$wanted" ] && matches "$file" "$wanted"; then
    echo "have  $file"
    return
  fi
  echo "fetch $url"
  mkdir -p "$(dirname "$file")"
  part="$file.part.$$"
  if ! curl --fail --location --silent --show-error --retry 3 --connect-timeout 20 --max-time 600 -o "$part" "$url"; then
    rm -f "$part"
    echo "Could not fetch $url. Check the network, or name a mirror with --mirror." >&2
    return 1
  fi
  sum=$(sha256sum "$part" | cut -d' ' -f1)
  if [ -n "$wanted" ] && [ "$sum" != "$wanted" ]; then
    rm -f "$part"
    echo "$url has sha256 $sum, but $DOWNLOADS_SHA256 says $wanted. Nothing was kept." >&2
    return 1
  fi
  if [ -z "$wanted" ] && [ "${DOWNLOADS_RECORD:-}" != 1 ]; then
    rm -f "$part"
    echo "$url has sha256 $sum, and $DOWNLOADS_SHA256 does not list it. Nothing was kept." >&2
    echo "Compare it with what its publisher says, then run this again with DOWNLOADS_RECORD=1." >&2
    return 1
  fi
  [ -n "$wanted" ] || echo "$sum $(path_of "$url")" >> "$DOWNLOADS_SHA256"
  mv "$part" "$file"
}
