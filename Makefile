# Needs cargo; uses cargo-nextest where it is installed.

CARGO ?= cargo
RUN_ARGS ?= --manifests examples
# How long `make soak` searches, such as 20m or 2h. Each kind of search runs at least once, which takes some minutes.
SOAK ?= 20m
# How many crates `make release` compiles, and how many parts it optimizes, at a time. More jobs need more memory.
JOBS ?= 2
# What a simulated agent uses as its API server: `ports` or `adapters`.
API ?= ports

# As root on Debian, make installs the programs that a target needs and that are missing. `make test INSTALL=no` installs nothing.
# Tests whose program is missing are skipped; PODWRIGHT_REQUIRE=containerd,browser makes them fail instead.
INSTALL ?= yes
export INSTALL
HAVE_NEXTEST = $(CARGO) nextest --version >/dev/null 2>&1
HAVE_BROWSER = command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable
HAVE_CONTAINERD = command -v containerd && command -v runc && [ -x /bin/busybox ] && { [ -d /usr/lib/cni ] || [ -d /opt/cni/bin ]; }
HAVE_VALGRIND = command -v valgrind
HAVE_VM = command -v mmdebstrap && command -v qemu-system-x86_64 && command -v mke2fs && command -v ssh-keygen

# What nextest reports of the last run of the tests.
REPORT = target/nextest/default/junit.xml

# Lints the library without its default features. The caller adds the features to lint.
LINT_LIBRARY = K8S_OPENAPI_ENABLED_VERSION=1.36 $(CARGO) clippy --locked -p podwright --no-default-features

.PHONY: run release demo-dra demo-taint test test-vm nextest browser containers lint lint-features deny bench instructions simulate soak

# Runs the pods of examples/ and shows them in a live table. State is kept in the default root directory.
run:
	$(CARGO) build --locked --bin podwright
	$${CARGO_TARGET_DIR:-target}/debug/podwright run $(RUN_ARGS)

# Builds the binary to install. The optimization across crates takes many minutes, and 3 GiB of memory with two jobs. With much
# memory, `make release JOBS=8` takes less time.
release:
	$(CARGO) build --locked --release --jobs $(JOBS) --bin podwright
	@ls -lh $${CARGO_TARGET_DIR:-target}/release/podwright

# Shows a pod with a device, without a cluster: an API server in memory, the agent and a driver with simulated devices.
demo-dra:
	$(CARGO) build --locked --bin podwright --example dra_driver --example dra_demo
	$${CARGO_TARGET_DIR:-target}/debug/examples/dra_demo

# Shows, without a cluster, how a pod is evicted when a rule taints its device: the parts of demo-dra and the controller.
demo-taint:
	$(CARGO) build --locked --bin podwright --example dra_driver --example taint_demo
	$${CARGO_TARGET_DIR:-target}/debug/examples/taint_demo

# A build that fails leaves no report, so the report of an earlier run is removed first.
test: browser containers
	@rm -f $(REPORT)
	if $(HAVE_NEXTEST); then $(CARGO) nextest run --locked --workspace; status=$$?; .ci/slowest $(REPORT); exit $$status; \
		else $(CARGO) build --locked --examples && $(CARGO) test --locked --workspace --lib --bins --tests; fi
	$(CARGO) test --locked --workspace --doc
	$(CARGO) test --locked --workspace --bench '*'
	@{ $(HAVE_BROWSER); } >/dev/null || echo "skipped: tests of the page in a browser"
	@{ $(HAVE_CONTAINERD); } >/dev/null || echo "skipped: tests that run pods as containers"
	@command -v kubectl >/dev/null || echo "skipped: tests that run kubectl"

nextest:
	@$(HAVE_NEXTEST) || .ci/install "run the tests" crate:cargo-nextest@0.9.143

browser:
	@{ $(HAVE_BROWSER); } >/dev/null || .ci/install "test the page in a browser" chromium

# Searches for unknown failures with new random inputs. SOAK is the time to search: `make soak SOAK=2h`.
soak: nextest
	@command -v c++ >/dev/null || .ci/install "build the fuzz targets" g++
	.ci/soak $(SOAK)

# Simulates the history of a node that a seed determines, and prints the whole trace if the seed fails: `make simulate SEED=12`. With
# `API=adapters`, the agent uses its adapters over an API server in memory.
simulate:
	$(CARGO) run --locked -q --profile soak -p podwright-simulation -- --api $(API) --seed $(SEED)

# Checks that need a whole machine: systemd, cgroup version 2, power cuts, a clock of its own. Builds a virtual machine of Debian
# packages in target/vm and boots it in software emulation, so it takes many minutes. `make test-vm CHECKS="slices oom"` runs only
# these files of tests/vm/checks.
test-vm:
	@{ $(HAVE_VM); } >/dev/null || .ci/install "run checks on a virtual machine" mmdebstrap qemu-system-x86 e2fsprogs openssh-client
	$(CARGO) build --locked --bin podwright
	$(CARGO) build --locked -p podwright-stand-in --example stand-in
	tests/vm/run $${CARGO_TARGET_DIR:-target}/debug/podwright $(CHECKS)

# Checks the format, the lints and rustdoc. The lints run with all features, with none, and with each runtime alone.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --features podwright-fuzz/targets -- -D warnings
	$(LINT_LIBRARY) -- -D warnings
	for runtime in cri process simulated; do $(LINT_LIBRARY) --features $$runtime -- -D warnings || exit 1; done
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

# Lints the library with the seven other sets of features that an embedder may choose. Together with the five sets of `make lint`, they
# have each feature alone. Without the feature of the binary, no dependency chooses a version of the Kubernetes API, so LINT_LIBRARY sets
# the version.
lint-features:
	for features in agent controllers dra dra-driver engine kube cri,process; do \
		$(LINT_LIBRARY) --features $$features -- -D warnings || exit 1; done

# Checks the licences, sources and duplicates of dependencies. `cargo deny --locked check advisories` checks the known vulnerabilities,
# and needs the network for their database.
deny:
	@$(CARGO) deny --version >/dev/null 2>&1 || .ci/install "check the dependencies" crate:cargo-deny@0.20.2
	$(CARGO) deny --locked check bans licenses sources

# The tests start a containerd of their own.
containers:
	@{ $(HAVE_CONTAINERD); } >/dev/null || .ci/install "run the tests' pods as containers" \
		containerd runc containernetworking-plugins busybox-static

bench: containers
	$(CARGO) bench --locked --bench engine
	$(CARGO) bench --locked --bench node
	$(CARGO) bench --locked --bench claims
	$(CARGO) bench --locked -p podwright-parts --bench parts
	$(CARGO) bench --locked --bench controllers
	$(CARGO) bench --locked --bench containers

# Compares the instructions that the hot paths execute with the committed counts.
instructions:
	@{ $(HAVE_VALGRIND); } >/dev/null || .ci/install "count instructions" valgrind
	@if { $(HAVE_VALGRIND); } >/dev/null; then $(CARGO) bench --locked -p podwright-engine --bench instructions; \
		else echo "valgrind is not installed: instructions were not counted"; [ -z "$(PODWRIGHT_REQUIRE)" ]; fi
