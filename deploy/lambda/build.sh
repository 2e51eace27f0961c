#!/bin/sh
# Builds the image that models run in and pushes it to this account's registry. Needs docker, the aws command and a login.
#   deploy/lambda/build.sh [TAG]
set -eu
cd "$(dirname "$0")/../.."
tag=${1:-1}
region=$(aws configure get region || echo "${AWS_REGION:?Set AWS_REGION}")
account=$(aws sts get-caller-identity --query Account --output text)
registry=$account.dkr.ecr.$region.amazonaws.com

TORCH=cpu make templates
docker build --platform linux/amd64 --provenance=false -f deploy/lambda/Dockerfile \
    --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu -t "$registry/gnomon:$tag" templates/gnomon-body
aws ecr describe-repositories --repository-names gnomon >/dev/null 2>&1 || aws ecr create-repository --repository-name gnomon >/dev/null
aws ecr get-login-password | docker login --username AWS --password-stdin "$registry"
docker push "$registry/gnomon:$tag"
echo "gnomon serve --platform lambda --lambda-image $registry/gnomon:$tag"
