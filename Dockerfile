# syntax=docker/dockerfile:1
# One static binary without its symbols, and nothing else. `deploy/image` builds the same image around a binary that is built
# already, in place of the stage `build`.

# With --build-arg DRIVER=cassandra-cpp the image has the C++ driver for Cassandra as well (docs/cassandra-cpp.md), and what that
# needs of Debian.
ARG DRIVER=scylla

FROM rust:1.95-alpine AS tools-scylla
RUN apk add --no-cache musl-dev binutils
ENV FEATURES="" CARGO_TARGET_DIR=/src/target/scylla

FROM rust:1.95-bookworm AS tools-cassandra-cpp
ARG CASSANDRA_CPP_VERSION=2.17.1
RUN apt-get update && apt-get install -y --no-install-recommends cmake g++ libuv1-dev libssl-dev zlib1g-dev
ADD https://github.com/apache/cassandra-cpp-driver/archive/refs/tags/${CASSANDRA_CPP_VERSION}.tar.gz /tmp/driver.tar.gz
COPY deploy/build-libcassandra /tmp/
RUN tar -xzf /tmp/driver.tar.gz -C /tmp && /tmp/build-libcassandra /tmp/*cpp-driver-* /usr/local \
    && mkdir -p /out/lib && cp -P /usr/local/lib/libcassandra.so* /out/lib/
ENV FEATURES=cassandra-cpp CARGO_TARGET_DIR=/src/target/cassandra-cpp

FROM tools-${DRIVER} AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY crates crates
# A member of the workspace that is not built here: cargo wants to see it.
COPY bench/Cargo.toml bench/
RUN mkdir bench/src && touch bench/src/main.rs
COPY src src
COPY deploy/split-symbols deploy/split-symbols
# For --version: --build-arg COMMIT="$(git log -1 --abbrev=8 --format='%h %cs')".
ARG COMMIT=""
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    FERMATA_COMMIT="$COMMIT" cargo build --release --locked -p fermata-lock --bin fermata --features "$FEATURES" \
    && mkdir -p /out/data \
    && deploy/split-symbols "$CARGO_TARGET_DIR/release/fermata" /out

# docker build --target symbols --output . .   leaves fermata.debug here, for gdb, perf and backtraces.
FROM scratch AS symbols
COPY --from=build /out/fermata.debug /

FROM scratch AS base-scylla

FROM debian:bookworm-slim AS base-cassandra-cpp
RUN apt-get update && apt-get install -y --no-install-recommends libuv1 libssl3 zlib1g libstdc++6 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/lib/ /usr/lib/

FROM base-${DRIVER}
COPY --from=build /out/fermata /usr/bin/fermata
# An unprivileged user that owns nothing but the data.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
VOLUME /data
EXPOSE 7450
ENV FERMATA_CFG_DATA_DIR=/data FERMATA_CFG_LOG__FORMAT=json
# SIGTERM ends it in an orderly way, within shutdown_grace (10 s), on Cassandra within twice that and 6 s:
# docker stop -t 30
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/fermata"]
# Exit status 0 only if it has its store. Where it listens elsewhere, or with TLS, say so: FERMATA_ENDPOINT=https://localhost:7450 with
# FERMATA_CA_FILE, or let it listen on a Unix socket as well, FERMATA_ENDPOINT=unix:/PATH.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["/usr/bin/fermata", "health", "--timeout", "2s"]
# Whoever reaches the port may take and break locks: publish it to a network that you trust.
CMD ["serve", "--listen", "0.0.0.0:7450", "--insecure"]
