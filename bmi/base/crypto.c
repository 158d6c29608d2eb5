/* SPDX-License-Identifier: BSD-3-Clause
 *
 * crypto.c - see crypto.h.
 *
 * One digest context is kept from the first start to the end of the process. It holds all memory
 * that a digest needs, so that no handshake fails in the middle for want of memory. digest_lock
 * guards it.
 */
#include "bmi/base/crypto.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"

static pthread_mutex_t digest_lock = PTHREAD_MUTEX_INITIALIZER;
static EVP_MD_CTX *digest_context;

/* The digest is fetched once: a fetch takes five times as long as a digest. */
static EVP_MD_CTX *context_make(void)
{
    EVP_MD *sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    EVP_MD_CTX *context = sha256 != NULL ? EVP_MD_CTX_new() : NULL;
    if (context != NULL && EVP_DigestInit_ex(context, sha256, NULL) != 1) {
        EVP_MD_CTX_free(context);
        context = NULL;
    }
    EVP_MD_free(sha256); /* the context has its own reference */
    return context;
}

/* Without OPENSSL_INIT_NO_ATEXIT libcrypto would free its state in exit(), while threads of this
 * library may still be using it. A program that initializes libcrypto itself decides for itself. */
int bmi__crypto_start(void)
{
    if (OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL) != 1)
        return -EIO;
    pthread_mutex_lock(&digest_lock);
    if (digest_context == NULL)
        digest_context = context_make();
    int status = digest_context != NULL ? 0 : -EIO;
    pthread_mutex_unlock(&digest_lock);
    return status;
}

void bmi__crypto_before_fork(void)
{
    pthread_mutex_lock(&digest_lock);
}

void bmi__crypto_after_fork(void)
{
    pthread_mutex_unlock(&digest_lock);
}

void bmi__digest16(uint8_t digest[16], const void *bytes, size_t size)
{
    uint8_t whole[EVP_MAX_MD_SIZE];
    pthread_mutex_lock(&digest_lock);
    bool done = EVP_DigestInit_ex(digest_context, NULL, NULL) == 1 &&
                EVP_DigestUpdate(digest_context, bytes, size) == 1 &&
                EVP_DigestFinal_ex(digest_context, whole, NULL) == 1;
    pthread_mutex_unlock(&digest_lock);
    /* Only a module that has failed its own checks gets here: nothing can be proved with it. */
    if (!done)
        abort();
    memcpy(digest, whole, 16);
}

int bmi__random(const struct bmi_instance *instance, void *bytes, size_t size)
{
    if (instance->random != NULL)
        return instance->random(instance->argument, bytes, size);
    return RAND_bytes(bytes, (int)size) == 1 ? 0 : -EIO;
}
