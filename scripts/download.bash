# shellcheck shell=bash
# Sourced by the download scripts: fetches files once, whole, and checked.
#
# Rules: a file appears under its name only when it is complete; a file listed in downloads.sha256 must match it; a file
# that is not listed yet is listed on its first download, so that every later machine gets the same bytes.

DOWNLOADS_SHA256="${DOWNLOADS_SHA256:-$(dirname "${BASH_SOURCE[0]}")/downloads.sha256}"

recorded_sum() {
  [ -f "$DOWNLOADS_SHA256" ] && awk -v url="$1" '$2 == url {print $1}' "$DOWNLOADS_SHA256"
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
  [ -n "$wanted" ] || echo "$sum $url" >> "$DOWNLOADS_SHA256"
  mv "$part" "$file"
}
