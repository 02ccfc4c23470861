# Stands in for the public image of the same name: the server of the wheel, and wget and nc of busybox as in Alpine.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends busybox \
 && rm -rf /var/lib/apt/lists/* \
 && for name in wget nc; do ln -s /bin/busybox /usr/local/bin/$name; done
COPY nats-server /usr/local/bin/nats-server
EXPOSE 4222 8222
CMD ["nats-server"]
