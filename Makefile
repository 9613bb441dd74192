# What a contributor types. Needs cargo; uses cargo-nextest, cargo-deny and valgrind where they are installed.

CARGO ?= cargo
RUN_ARGS ?= --manifests examples
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
DENY := $(shell $(CARGO) deny --version >/dev/null 2>&1 && echo yes)

# The page is tested in a browser, where one is installed or may be.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: run test browser containers lint bench instructions

# The pods of examples/, in a live table. State is kept in the default root directory.
run:
	$(CARGO) build --release --bin podwright
	target/release/podwright run $(RUN_ARGS)

test: browser containers
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --workspace
else
	$(CARGO) test --workspace --lib --bins --tests
endif
	$(CARGO) test --workspace --doc
	$(CARGO) test --workspace --bench '*'

browser:
ifeq ($(BROWSER),)
	@{ [ "$$(id -u)" = 0 ] && apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo "no browser is installed (chromium): the page is not tested"
endif

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --all-targets --no-default-features -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir target --locked --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
ifeq ($(DENY),yes)
	$(CARGO) deny check
else
	@echo "cargo-deny is not installed: licences and advisories were not checked"
endif

# Pods are run as containers by a containerd that the tests start themselves, where it is installed or may be.
containers:
	@{ command -v containerd && command -v runc && [ -x /bin/busybox ] && [ -d /usr/lib/cni ]; } >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
			--no-install-recommends containerd runc containernetworking-plugins busybox-static; } >/dev/null 2>&1 \
		|| echo "containerd is not installed (as root: containerd runc containernetworking-plugins busybox-static): \
	pods are not run as containers"

bench: containers
	$(CARGO) bench --bench engine
	$(CARGO) bench --bench node
	$(CARGO) bench --bench containers

# What the hot paths execute, beside the committed counts. As root, valgrind is installed where it is missing.
instructions:
	@command -v valgrind >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		{ apt-get install -yq valgrind || { apt-get update -q && apt-get install -yq valgrind; }; } >/dev/null 2>&1; } || true
	@if command -v valgrind >/dev/null; then $(CARGO) bench -p podwright-actors --bench instructions; \
		else echo "valgrind is not installed: instructions were not counted"; fi
