# syntax=docker/dockerfile:1
# One static binary without its symbols, and nothing else.

FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev binutils
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY crates crates
COPY bench bench
COPY src src
COPY deploy/split-symbols deploy/split-symbols
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin fermata \
    && mkdir -p /out/data \
    && deploy/split-symbols target/release/fermata /out

# docker build --target symbols --output . .   leaves fermata.debug here, for gdb, perf and backtraces.
FROM scratch AS symbols
COPY --from=build /out/fermata.debug /

FROM scratch
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
# One call through the engine to the store; exit status 0 only if it was answered.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["/usr/bin/fermata", "locks", "ls", "--limit", "1", "--timeout", "2s"]
# Whoever reaches the port may take and break locks: publish it to a network that you trust.
CMD ["serve", "--listen", "0.0.0.0:7450", "--insecure"]
