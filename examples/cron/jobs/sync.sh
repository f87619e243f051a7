#!/bin/sh
echo "synchronized, run $HOLDFAST_FENCE"
