# shellcheck shell=bash
# Functions of the download scripts. Files are written atomically, and must match their checksums in downloads.sha256,
# by the path of their URL, so that a mirror must have the same content. A file without a checksum is rejected; with
# DOWNLOADS_RECORD=1 its checksum is added. Compare it with the publisher's before you commit it.

DOWNLOADS_SHA256="${DOWNLOADS_SHA256:-$(dirname "${BASH_SOURCE[0]}")/downloads.sha256}"

# read_options ARGUMENTS...: set DEST, MIRROR and dry_run from --dest, --mirror and --dry-run.
# shellcheck disable=SC2034 # used by the scripts that source this
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

# path_of URL: its path, without the leading slash.
path_of() {
  local rest=${1#*://}
  echo "${rest#*/}"
}

recorded_sum() {
  [ -f "$DOWNLOADS_SHA256" ] && awk -v path="$(path_of "$1")" '$2 == path {print $1}' "$DOWNLOADS_SHA256"
}

# matches FILE SUM: true if FILE exists and has the checksum SUM.
matches() {
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# download URL FILE: download URL to FILE, unless FILE exists and has the right checksum.
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
    echo "Cannot download $url. Check the network, or use --mirror." >&2
    return 1
  fi
  sum=$(sha256sum "$part" | cut -d' ' -f1)
  if [ -n "$wanted" ] && [ "$sum" != "$wanted" ]; then
    rm -f "$part"
    echo "$url: sha256 is $sum, but $DOWNLOADS_SHA256 has $wanted; the file was deleted" >&2
    return 1
  fi
  if [ -z "$wanted" ] && [ "${DOWNLOADS_RECORD:-}" != 1 ]; then
    rm -f "$part"
    echo "$url: sha256 is $sum, which is not in $DOWNLOADS_SHA256; the file was deleted" >&2
    echo "Compare it with the publisher's checksum, then run this again with DOWNLOADS_RECORD=1." >&2
    return 1
  fi
  [ -n "$wanted" ] || echo "$sum $(path_of "$url")" >> "$DOWNLOADS_SHA256"
  mv "$part" "$file"
}
