#!/bin/sh
# Chromium and its driver from the system's packages, if they are missing and may be installed.
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
as_root=
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "no Chromium, and no right to install it: tests of pages are skipped"; exit 1; }
    as_root="sudo -n"
fi
command -v apt-get >/dev/null || { echo "no Chromium, and no apt-get to install it: tests of pages are skipped"; exit 1; }
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 chromium chromium-driver >/dev/null 2>&1
}
echo "installing Chromium for the tests of pages (some seconds, once)"
install || { $as_root apt-get update -qq >/dev/null 2>&1; install; } ||
    { echo "Chromium cannot be installed: tests of pages are skipped"; exit 1; }
